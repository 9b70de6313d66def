package example;

import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;

/** Writes events with Spring's JDBC client. */
@Component
public class OutboxWriter {
    private final JdbcClient database;

    public OutboxWriter(JdbcClient database) {
        this.database = database;
    }

    /** MANDATORY: without a transaction of the caller this throws, and does not begin one of its own. */
    @Transactional(propagation = Propagation.MANDATORY)
    public void write(
            String aggregateType, String aggregateId, String type, String payload, String tenant, String traceparent) {
        database.sql("""
                        insert into outbox (aggregatetype, aggregateid, type, payload, tenant_id, traceparent)
                        values (:aggregateType, :aggregateId, :type, :payload::jsonb, :tenant, :traceparent)
                        """)
                .param("aggregateType", aggregateType)
                .param("aggregateId", aggregateId)
                .param("type", type)
                .param("payload", payload)
                .param("tenant", tenant)
                .param("traceparent", traceparent)
                .update();
    }
}
