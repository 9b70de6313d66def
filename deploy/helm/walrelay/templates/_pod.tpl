{{- /* The pod of the relay or of the exporter. Takes `root`, and their `component`, `args` and `resources`. */}}
{{- define "walrelay.pod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $fullname := include "walrelay.fullname" $root -}}
{{- $pgpass := include "walrelay.pgpassSecret" $root -}}
{{- $kafkaSecret := ternary $fullname $values.kafka.existingSecret (not (empty $values.kafka.password)) -}}
metadata:
  labels:
    {{- include "walrelay.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A changed configuration starts new pods. A changed password does not: its checksum would help to guess it.
    checksum/config: {{ sha256sum $values.config }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "walrelay.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- with $values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  containers:
    - name: walrelay
      image: {{ printf "%s:%s" $values.image.repository ($values.image.tag | default $root.Chart.AppVersion) | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args:
        {{- toYaml .args | nindent 8 }}
      env:
        - name: WALRELAY_HTTP
          value: "{{ $values.http.address }}:{{ $values.http.port }}"
        {{- if $pgpass }}
        - name: PGPASSFILE
          value: /etc/walrelay-secrets/pgpass
        {{- else if $values.database.passwordKey }}
        - name: PGPASSWORD
          valueFrom:
            secretKeyRef:
              name: {{ $values.database.existingSecret }}
              key: {{ $values.database.passwordKey }}
        {{- end }}
        {{- with $kafkaSecret }}
        - name: WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: {{ ternary "kafka-password" $values.kafka.passwordKey (eq . $fullname) }}
        {{- end }}
        {{- with $values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: http
          containerPort: {{ $values.http.port }}
      # Not /readyz, which a stand-by answers with 503: see deployment.yaml.
      readinessProbe:
        httpGet:
          path: /healthz
          port: http
        periodSeconds: 5
      livenessProbe:
        httpGet:
          path: /healthz
          port: http
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      {{- with .resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        # walrelay finds the configuration here, also in `kubectl exec … walrelay status`.
        - name: config
          mountPath: /etc/walrelay
          readOnly: true
        {{- if $pgpass }}
        - name: pgpass
          mountPath: /etc/walrelay-secrets
          readOnly: true
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ $fullname }}
    {{- if $pgpass }}
    - name: pgpass
      secret:
        secretName: {{ $pgpass }}
        # The file belongs to root and the group fsGroup. walrelay refuses one that others can read.
        defaultMode: 0440
        items:
          - key: {{ include "walrelay.pgpassKey" $root }}
            path: pgpass
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- if $values.topologySpreadConstraints }}
    {{- toYaml $values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "walrelay.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ .component }}
    {{- end }}
{{- end }}
