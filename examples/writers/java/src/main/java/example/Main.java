package example;

import jakarta.persistence.EntityManagerFactory;
import java.util.Properties;
import javax.sql.DataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.ComponentScan;
import org.springframework.context.annotation.Configuration;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.orm.jpa.JpaTransactionManager;
import org.springframework.orm.jpa.LocalContainerEntityManagerFactoryBean;
import org.springframework.orm.jpa.vendor.HibernateJpaVendorAdapter;
import org.springframework.transaction.annotation.EnableTransactionManagement;

/** Places two orders, one with JDBC and one with JPA. Environment: JDBC_URL. Spring Boot makes these beans itself. */
@Configuration
@ComponentScan
@EnableTransactionManagement
public class Main {
    public static void main(String[] arguments) {
        try (var context = new AnnotationConfigApplicationContext(Main.class)) {
            context.getBean(OrderService.class).placeOrder(arguments[0], "customer-1", 42, "7", null);
            context.getBean(JpaOrderService.class).placeOrder(arguments[1], "customer-1", 43, "7", null);
        }
    }

    @Bean
    DataSource dataSource() {
        return new DriverManagerDataSource(System.getenv("JDBC_URL"));
    }

    @Bean
    JdbcClient jdbcClient(DataSource dataSource) {
        return JdbcClient.create(dataSource);
    }

    @Bean
    LocalContainerEntityManagerFactoryBean entityManagerFactory(DataSource dataSource) {
        var factory = new LocalContainerEntityManagerFactoryBean();
        factory.setDataSource(dataSource);
        factory.setPackagesToScan("example");
        factory.setJpaVendorAdapter(new HibernateJpaVendorAdapter());
        var properties = new Properties();
        properties.setProperty("hibernate.hbm2ddl.auto", "none");
        factory.setJpaProperties(properties);
        return factory;
    }

    /** One manager for both: it binds the connection of JPA's transaction, and the JDBC client uses that one. */
    @Bean
    JpaTransactionManager transactionManager(EntityManagerFactory factory) {
        return new JpaTransactionManager(factory);
    }
}
