package example;

import jakarta.persistence.Column;
import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import jakarta.persistence.Table;
import java.util.Map;
import java.util.UUID;
import org.hibernate.annotations.Immutable;
import org.hibernate.annotations.JdbcTypeCode;
import org.hibernate.type.SqlTypes;

/** A row of the outbox for JPA. Columns that are not mapped here have defaults in the table. */
@Entity
@Immutable
@Table(name = "outbox")
public class OutboxEvent {
    /** JPA needs the id before the insert. A random UUID is never used again. */
    @Id
    private UUID id = UUID.randomUUID();

    @Column(name = "aggregatetype")
    private String aggregateType;

    @Column(name = "aggregateid")
    private String aggregateId;

    private String type;

    /** Hibernate writes JSON with the Jackson of the class path. */
    @JdbcTypeCode(SqlTypes.JSON)
    private Map<String, Object> payload;

    @Column(name = "tenant_id")
    private String tenant;

    private String traceparent;

    protected OutboxEvent() {}

    public OutboxEvent(String aggregateType, String aggregateId, String type, Map<String, Object> payload) {
        this.aggregateType = aggregateType;
        this.aggregateId = aggregateId;
        this.type = type;
        this.payload = payload;
    }

    public OutboxEvent of(String tenant, String traceparent) {
        this.tenant = tenant;
        this.traceparent = traceparent;
        return this;
    }
}
