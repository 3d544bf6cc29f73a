-- The shop of the demo. Every table but the outbox is the application's own
-- business; the relay reads and marks the outbox only.

CREATE TABLE IF NOT EXISTS sale (
  id            VARCHAR(16)  NOT NULL PRIMARY KEY,
  started_at    DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  finished_at   DATETIME(6)  NULL,
  reconciled_at DATETIME(6)  NULL,
  committed     INT          NOT NULL DEFAULT 0,
  unknown       INT          NOT NULL DEFAULT 0
);

-- stock is signed and has no CHECK on purpose: overselling must be able to show.
CREATE TABLE IF NOT EXISTS product (
  sale_id       VARCHAR(16)  NOT NULL,
  id            INT          NOT NULL,
  name          VARCHAR(40)  NOT NULL,
  stock_initial INT          NOT NULL,
  stock         INT          NOT NULL,
  PRIMARY KEY (sale_id, id)
);

CREATE TABLE IF NOT EXISTS orders (
  id            VARCHAR(32)  NOT NULL PRIMARY KEY,
  sale_id       VARCHAR(16)  NOT NULL,
  product_id    INT          NOT NULL,
  quantity      INT          NOT NULL,
  status        VARCHAR(20)  NOT NULL,
  version       INT          NOT NULL DEFAULT 1,
  KEY idx_sale_product (sale_id, product_id)
);

CREATE TABLE IF NOT EXISTS outbox (
  id             BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
  aggregate_type VARCHAR(64)  NOT NULL,
  aggregate_id   VARCHAR(64)  NOT NULL,
  event_type     VARCHAR(64)  NOT NULL,
  payload        JSON         NOT NULL,
  status         VARCHAR(20)  NOT NULL DEFAULT 'PENDING',
  created_at     DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  sent_at        DATETIME(6)  NULL,
  attempts       INT          NOT NULL DEFAULT 0,
  KEY idx_status_created (status, created_at)
);
