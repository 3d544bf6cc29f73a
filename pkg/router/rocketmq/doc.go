// Package rocketmq sends messages to Apache RocketMQ over its remoting protocol.
//
// It promises:
//
//   - A batch is one request to one queue, stored whole and in order or not at
//     all, and Send returns nil only for a batch that the broker says is stored
//     (and, unless the operator accepts less, flushed and replicated as the
//     broker is configured). One message goes the same way as many.
//   - A lane is a queue, and the list of a topic's queues is frozen: it is read
//     once, while every broker that the route names has a master, kept in a
//     [TopicStore], and never recomputed from a live route. A broker that is away
//     stops its own lanes and moves no key.
//   - Every failure is an [outbox.SendError], classified in one place (classify).
//   - The client library neither retries nor writes to stderr by itself.
//
// It is built on github.com/apache/rocketmq-client-go/v2, and around it: one
// producer for each broker, because in a shared one an unreachable broker holds
// the connection lock against the healthy ones; batches that are encoded here,
// because the library's encoder is slower and gives inner messages no UNIQ_KEY;
// and requests of its own to name servers and brokers where the library reports
// a missing topic and a missing name server with the same words.
//
// TLS, if asked for, is encryption without authentication: the library does not
// verify certificates and has no setting to do so.
package rocketmq
