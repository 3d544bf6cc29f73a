-- +goose Up
-- +goose NO TRANSACTION
-- An outbox table with a column for every role. Producers fill aggregate_type, aggregate_id, event_type,
-- payload and, if they like, headers, topic and tag; the rest has defaults and belongs to the relay.
CREATE TABLE IF NOT EXISTS outbox (
  id              BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  aggregate_type  VARCHAR(127)    NOT NULL,
  aggregate_id    VARCHAR(255)    NOT NULL,
  event_type      VARCHAR(255)    NOT NULL,
  payload         LONGTEXT        NOT NULL,
  headers         JSON            NULL,
  topic           VARCHAR(127)    NULL,
  tag             VARCHAR(127)    NULL,
  status          VARCHAR(20)     NOT NULL DEFAULT 'PENDING',
  attempts        INT             NOT NULL DEFAULT 0,
  last_error      VARCHAR(1024)   NULL,
  claim_token     VARCHAR(64)     NULL,
  claimed_at      DATETIME(6)     NULL,
  next_attempt_at DATETIME(6)     NULL,
  created_at      DATETIME(6)     NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  updated_at      DATETIME(6)     NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  sent_at         DATETIME(6)     NULL,
  PRIMARY KEY (id),
  KEY idx_status_created (status, created_at),
  KEY idx_status_next_attempt (status, next_attempt_at, created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
