using System.ComponentModel.DataAnnotations.Schema;
using System.Text.Json;
using Microsoft.EntityFrameworkCore;

// The same with EF Core.
static class WithEfCore
{
    public static async Task PlaceOrder(
        string connectionString, string id, string customer, int total, string? tenant = null, string? traceparent = null)
    {
        await using var shop = new Shop(connectionString);
        shop.Orders.Add(new Order { Id = id, Customer = customer, Total = total });
        shop.Outbox.Add(new OutboxEvent
        {
            AggregateType = "order",
            AggregateId = id,
            Type = "OrderPlaced",
            Payload = JsonSerializer.Serialize(new { orderId = id, customer, total }),
            TenantId = tenant,
            Traceparent = traceparent,
        });
        // One SaveChanges is one transaction. With several, begin one: shop.Database.BeginTransactionAsync().
        await shop.SaveChangesAsync();
    }
}

sealed class Shop(string connectionString) : DbContext
{
    public DbSet<Order> Orders => Set<Order>();
    public DbSet<OutboxEvent> Outbox => Set<OutboxEvent>();

    protected override void OnConfiguring(DbContextOptionsBuilder options) => options.UseNpgsql(connectionString);
}

[Table("orders")]
sealed class Order
{
    [Column("id")] public required string Id { get; init; }
    [Column("customer")] public required string Customer { get; init; }
    [Column("total")] public required int Total { get; init; }
}

// Columns that are not mapped here have defaults in the table.
[Table("outbox")]
sealed class OutboxEvent
{
    [Column("id")] public Guid Id { get; init; } = Guid.NewGuid();
    [Column("aggregatetype")] public required string AggregateType { get; init; }
    [Column("aggregateid")] public required string AggregateId { get; init; }
    [Column("type")] public required string Type { get; init; }
    [Column("payload", TypeName = "jsonb")] public required string Payload { get; init; }
    [Column("tenant_id")] public string? TenantId { get; init; }
    [Column("traceparent")] public string? Traceparent { get; init; }
}
