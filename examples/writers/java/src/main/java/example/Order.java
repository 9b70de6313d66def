package example;

import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import jakarta.persistence.Table;

/** The aggregate of the examples. */
@Entity
@Table(name = "orders")
public class Order {
    @Id
    private String id;

    private String customer;
    private int total;

    protected Order() {}

    public Order(String id, String customer, int total) {
        this.id = id;
        this.customer = customer;
        this.total = total;
    }
}
