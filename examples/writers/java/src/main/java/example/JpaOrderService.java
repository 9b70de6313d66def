package example;

import jakarta.persistence.EntityManager;
import jakarta.persistence.PersistenceContext;
import java.util.Map;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

/** Places an order and writes its event in one transaction, with JPA. */
@Service
public class JpaOrderService {
    @PersistenceContext
    private EntityManager entities;

    @Transactional(rollbackFor = Exception.class)
    public void placeOrder(String id, String customer, int total, String tenant, String traceparent) {
        entities.persist(new Order(id, customer, total));
        // persist(), not merge() or a repository's save(): the row is inserted, without a select before.
        entities.persist(new OutboxEvent("order", id, "OrderPlaced", Map.of("orderId", id, "total", total))
                .of(tenant, traceparent));
    }
}
