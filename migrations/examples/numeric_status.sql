-- The outbox table with numeric states. rowferry recognises it without configuration.
CREATE TABLE outbox (
  id           BIGINT       NOT NULL AUTO_INCREMENT,
  aggregate_id VARCHAR(64)  NOT NULL,
  event_type   VARCHAR(128) NOT NULL,
  payload      JSON         NOT NULL,
  status       TINYINT      NOT NULL DEFAULT 0, -- 0 pending, 1 sent, 2 failed
  retry_count  INT          NOT NULL DEFAULT 0,
  created_at   DATETIME     NOT NULL DEFAULT CURRENT_TIMESTAMP,
  updated_at   DATETIME     NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (id),
  KEY idx_status_created (status, created_at) -- without it every sweep scans the table
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
