package example;

import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

/** Places an order and writes its event in one transaction, with Spring JDBC. */
@Service
public class OrderService {
    private final JdbcClient database;
    private final OutboxWriter outbox;

    public OrderService(JdbcClient database, OutboxWriter outbox) {
        this.database = database;
        this.outbox = outbox;
    }

    /** A checked exception would commit by default: rollbackFor names them as well. */
    @Transactional(rollbackFor = Exception.class)
    public void placeOrder(String id, String customer, int total, String tenant, String traceparent) {
        database.sql("insert into orders (id, customer, total) values (?, ?, ?)")
                .params(id, customer, total)
                .update();
        // Build real payloads with a JSON library.
        String payload = "{\"orderId\": \"%s\", \"total\": %d}".formatted(id, total);
        outbox.write("order", id, "OrderPlaced", payload, tenant, traceparent);
    }
}
