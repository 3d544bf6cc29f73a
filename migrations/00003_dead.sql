-- +goose Up
-- +goose NO TRANSACTION
-- Dead letters whose own table has no room for the reason. `tbl` is schema.table.
CREATE TABLE IF NOT EXISTS rowferry_dead (
  name         VARCHAR(128) NOT NULL,
  tbl          VARCHAR(130) NOT NULL,
  id           VARCHAR(480) NOT NULL,
  order_key    TEXT         NULL,
  reason       TEXT         NOT NULL,
  attempts     INT          NOT NULL DEFAULT 0,
  discarded_at DATETIME(6)  NULL,
  PRIMARY KEY (name, tbl, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
