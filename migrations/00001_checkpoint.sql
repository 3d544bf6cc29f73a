-- +goose Up
-- +goose NO TRANSACTION
-- One row a relay: how far it has come. `position` is opaque text; a GTID set can be long.
-- `fence` is written to be seen again in the binlog; `updated_at` is UTC, when `position` was saved.
CREATE TABLE IF NOT EXISTS rowferry_checkpoint (
  name       VARCHAR(128)     NOT NULL,
  epoch      BIGINT           NOT NULL DEFAULT 0,
  owner      VARCHAR(255)     NOT NULL DEFAULT '',
  `position` LONGTEXT         NOT NULL,
  fence      BIGINT UNSIGNED  NOT NULL DEFAULT 0,
  paused     TINYINT          NOT NULL DEFAULT 0,
  updated_at DATETIME(6)      NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
