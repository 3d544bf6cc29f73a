package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/relay"
	"github.com/rowferry/rowferry/pkg/router"
	"github.com/rowferry/rowferry/pkg/router/rocketmq"
	"github.com/rowferry/rowferry/pkg/router/stdout"
)

// Sink is what the app needs of a broker beyond what the engine does.
type Sink interface {
	relay.Sink
	Ping(context.Context) error
	Close() error
}

// NewRouter builds the router of a configuration.
func NewRouter(cfg *config.Config) (*router.Router, error) {
	return router.New(router.Config{
		Topic: cfg.RouteTopic, Tag: cfg.RouteTag, Key: cfg.RouteKey, Rules: cfg.RouteRules.String(),
		UIDPrefix: cfg.UIDPrefix, MessageBytesMax: int64(cfg.MessageBytesMax),
	})
}

// NewSink builds the sink of a configuration; topics keeps frozen queue lists.
func NewSink(cfg *config.Config, topics rocketmq.TopicStore, log zerolog.Logger) (Sink, error) {
	if cfg.Sink == config.SinkStdout {
		return stdout.New(os.Stdout, int64(cfg.MessageBytesMax)), nil
	}
	if (cfg.RocketMQAccessKey == "") != (cfg.RocketMQSecretKey == "") {
		return nil, errors.New("ROWFERRY_ROCKETMQ_ACCESS_KEY and ROWFERRY_ROCKETMQ_SECRET_KEY go together")
	}
	s, err := rocketmq.New(rocketmq.Config{
		NameServers: cfg.RocketMQNameServers, Group: cfg.RocketMQGroup,
		AccessKey: cfg.RocketMQAccessKey.Reveal(), SecretKey: cfg.RocketMQSecretKey.Reveal(),
		TLS: cfg.RocketMQTLS, SendTimeout: cfg.SendTimeout,
		CreateTopics: cfg.RocketMQCreate, TopicQueues: cfg.RocketMQTopicQueues,
		NonOK: cfg.RocketMQNonOK, MessageBytesMax: int64(cfg.MessageBytesMax),
		Topics: topics, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("RocketMQ: %w", err)
	}
	return s, nil
}
