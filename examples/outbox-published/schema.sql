-- The team's own table. Fixed, because Postgres has no INDEX clause in CREATE TABLE: the index is a statement of its own.

CREATE TABLE outbox (
    id UUID PRIMARY KEY,
    aggregate_id VARCHAR(255) NOT NULL,
    event_type VARCHAR(255) NOT NULL,
    event_data JSONB NOT NULL,
    metadata JSONB NOT NULL,
    created_at TIMESTAMP NOT NULL,
    published_at TIMESTAMP NULL,      -- NULL = not published yet
    published BOOLEAN DEFAULT FALSE,
    retry_count INT DEFAULT 0
);

CREATE INDEX idx_outbox_pending ON outbox (published, created_at);
