-- The outbox table of the "pragmatic DDD" layout. rowferry recognises it without configuration.
CREATE TABLE outbox (
  id           BIGINT       NOT NULL AUTO_INCREMENT,
  aggregate_id VARCHAR(64)  NOT NULL,
  event_type   VARCHAR(128) NOT NULL,
  payload      TEXT         NOT NULL,
  status       VARCHAR(20)  NOT NULL DEFAULT 'PENDING', -- PENDING, PROCESSING, SENT, FAILED
  created_at   DATETIME     NOT NULL DEFAULT CURRENT_TIMESTAMP,
  sent_at      DATETIME     NULL,
  attempts     INT          NOT NULL DEFAULT 0,
  PRIMARY KEY (id),
  KEY idx_status_created (status, created_at) -- without it every sweep scans the table
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
