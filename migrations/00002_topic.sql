-- +goose Up
-- +goose NO TRANSACTION
-- The frozen queue list of each topic, as a JSON array of broker:queue.
CREATE TABLE IF NOT EXISTS rowferry_topic (
  name    VARCHAR(128) NOT NULL,
  topic   VARCHAR(255) NOT NULL,
  queues  LONGTEXT     NOT NULL,
  version INT          NOT NULL DEFAULT 1,
  PRIMARY KEY (name, topic)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
