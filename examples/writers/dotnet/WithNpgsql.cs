using System.Text.Json;
using Npgsql;
using NpgsqlTypes;

// Places an order and writes its event in one transaction.
static class WithNpgsql
{
    public static async Task PlaceOrder(
        string connectionString, string id, string customer, int total, string? tenant = null, string? traceparent = null)
    {
        await using var database = new NpgsqlConnection(connectionString);
        await database.OpenAsync();
        // Disposed without a commit, it rolls both rows back.
        await using var transaction = await database.BeginTransactionAsync();

        await using var order = new NpgsqlCommand(
            "insert into orders (id, customer, total) values ($1, $2, $3)", database, transaction);
        order.Parameters.Add(new() { Value = id });
        order.Parameters.Add(new() { Value = customer });
        order.Parameters.Add(new() { Value = total });
        await order.ExecuteNonQueryAsync();

        // The columns id, seq, xid and created_at have defaults.
        await using var written = new NpgsqlCommand(
            """
            insert into outbox (aggregatetype, aggregateid, type, payload, tenant_id, traceparent)
            values ($1, $2, $3, $4, $5, $6)
            """,
            database, transaction);
        written.Parameters.Add(new() { Value = "order" });
        written.Parameters.Add(new() { Value = id });
        written.Parameters.Add(new() { Value = "OrderPlaced" });
        written.Parameters.Add(new()
        {
            Value = JsonSerializer.Serialize(new { orderId = id, customer, total }),
            NpgsqlDbType = NpgsqlDbType.Jsonb,
        });
        written.Parameters.Add(Text(tenant));
        written.Parameters.Add(Text(traceparent));
        await written.ExecuteNonQueryAsync();

        await transaction.CommitAsync();
    }

    static NpgsqlParameter Text(string? value) =>
        new() { Value = (object?)value ?? DBNull.Value, NpgsqlDbType = NpgsqlDbType.Text };
}
