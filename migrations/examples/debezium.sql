-- The outbox table of Debezium's event router. It has no status: rowferry publishes what is inserted and
-- writes nothing (ROWFERRY_LEDGER=none), or deletes what was sent (ROWFERRY_LEDGER=delete).
CREATE TABLE outbox (
  id            CHAR(36)     NOT NULL,
  aggregatetype VARCHAR(127) NOT NULL,
  aggregateid   VARCHAR(255) NOT NULL,
  type          VARCHAR(255) NOT NULL,
  payload       JSON         NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
