package rocketmq

import (
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

const (
	authentication = "org.apache.rocketmq.auth.authentication.provider."
	authorization  = "org.apache.rocketmq.auth.authorization.provider."
)

// TestACL runs against a broker that lets nobody in without a signature. Both
// the library's requests and our own must carry one that it accepts.
func TestACL(t *testing.T) {
	t.Parallel()
	mq := testservers.RocketMQ(t,
		"authenticationEnabled=true",
		"authenticationProvider="+authentication+"DefaultAuthenticationProvider",
		"authenticationMetadataProvider="+authentication+"LocalAuthenticationMetadataProvider",
		`initAuthenticationUser={"username":"admin","password":"secret"}`,
		`innerClientAuthenticationCredentials={"accessKey":"admin","secretKey":"secret"}`,
		"authorizationEnabled=true",
		"authenticationWhitelist=28", // the question by which the test's server sees that it is up
		"authorizationWhitelist=28",
		"authorizationProvider="+authorization+"DefaultAuthorizationProvider",
		"authorizationMetadataProvider="+authorization+"LocalAuthorizationMetadataProvider",
	)
	as := func(access, secret string) *Sink {
		return newSink(t, mq.NameServer(), createTopics, func(c *Config) { c.AccessKey, c.SecretKey = access, secret })
	}
	_, err := as("", "").Lanes(t.Context(), "orders")
	wantError(t, err, outbox.Configuration, "topic_not_created", "orders", "username cannot be null")

	admin := as("admin", "secret")
	if err := admin.Send(t.Context(), "orders", 0, numbered("orders", 0, 0, 3)); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Sink{"unsigned": as("", ""), "wrong secret": as("admin", "guess"), "unknown user": as("nobody", "x")} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 3} {
				err := s.Send(t.Context(), "orders", 0, numbered("orders", 0, 3, n))
				wantError(t, err, outbox.Configuration, "no_permission", "ROWFERRY_ROCKETMQ_ACCESS_KEY")
			}
		})
	}
}
