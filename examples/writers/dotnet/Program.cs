// Places two orders, one with Npgsql and one with EF Core. Environment: DATABASE (a connection string of Npgsql).

var connectionString = Environment.GetEnvironmentVariable("DATABASE")!;
await WithNpgsql.PlaceOrder(connectionString, args[0], "customer-1", 42, tenant: "7");
await WithEfCore.PlaceOrder(connectionString, args[1], "customer-1", 43, tenant: "7");
