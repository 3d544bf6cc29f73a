package binlog

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/testservers"
)

// The binlog connection is inside TLS with the server's name verified, by an
// account that has no more than the documented rights, whose password changes
// between two connections.
func TestTLSLeastPrivilegeAndRotatedPassword(t *testing.T) {
	certificate, flags := makeCertificate(t)
	server := testservers.MySQL(t, flags...)
	g := newRig(t, server)
	g.exec("CREATE USER tail IDENTIFIED BY 'first' REQUIRE SSL", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO tail")
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	password := "first"
	g.config.Sources = NewSources(func() ([]*mysql.Config, error) {
		cfg, err := mysql.ParseDSN(server.UserDSN("tail", password, ""))
		if err == nil {
			cfg.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		}
		return []*mysql.Config{cfg}, err
	}, 0, 0)
	tl := g.tail("now")
	g.exec("INSERT INTO outbox (payload) VALUES ('1')")
	wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"1"})
	tl.stop()

	g.exec("ALTER USER tail IDENTIFIED BY 'second'")
	password = "second"
	tl = g.tail("now")
	g.exec("INSERT INTO outbox (payload) VALUES ('2')")
	wantStrings(t, "payloads", payloads(g.flush(tl)), []string{"2"})
	tl.stop()

	// The stream itself refuses a server whose certificate nobody vouches for.
	cfg, err := g.config.Sources.current()
	if err != nil {
		t.Fatal(err)
	}
	cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	r, err := New(Config{DSN: cfg, ServerID: nextServerID(), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	r.resume = position{flavor: flavorMySQL, gtids: newMySQLSet()}
	s := &stream{r: r, ctx: t.Context(), flavor: flavorMySQL, plans: map[uint64]*plan{}}
	if err := s.run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a stream from an unknown server ended with %v", err)
	}
	if _, err := r.Resolve(t.Context(), "now"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Resolve at an unknown server gave %v", err)
	}
}

// What the operator demands of a connection holds for the stream as for the checks
// before it, or there is no connection.
func TestTLSDemands(t *testing.T) {
	certificate, flags := makeCertificate(t)
	server := testservers.MySQL(t, flags...)
	g := newRig(t, server)
	g.exec("CREATE USER tail IDENTIFIED BY 'secret'", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO tail")
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	verified := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	otherName := &tls.Config{RootCAs: roots, ServerName: "db.example", MinVersion: tls.VersionTLS12}
	for _, c := range []struct {
		name   string
		secure string // require_secure_transport
		server *testservers.DB
		tls    *tls.Config
		falls  bool   // plain text will do
		want   string // in the error; empty: it works
	}{
		{"plain, with the RSA key of caching_sha2_password", "OFF", server, nil, false, ""},
		{"verified", "OFF", server, verified, false, ""},
		{"verified, and required", "ON", server, verified, false, ""},
		{"plain where TLS is required", "ON", server, nil, false, "secure"},
		{"another name", "OFF", server, otherName, false, "certificate"},
		{"another CA", "OFF", server, &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}, false, "certificate"},
		{"a server without TLS", "OFF", testservers.SharedMariaDB(t), verified, false, "TLS"},
		{"a server without TLS that need not have it", "OFF", testservers.SharedMariaDB(t), verified, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newRig(t, c.server)
			admin, err := g.db.Conn(t.Context()) // a connection that is there may stay
			if err != nil {
				t.Fatal(err)
			}
			set := func(statement string) {
				if _, err := admin.ExecContext(context.Background(), statement); err != nil {
					t.Error(err)
				}
			}
			defer admin.Close()
			set("FLUSH PRIVILEGES") // no password is cached
			set("SET GLOBAL require_secure_transport = " + c.secure)
			defer set("SET GLOBAL require_secure_transport = OFF")
			cfg := h.config.DSN
			if c.server == server {
				cfg.User, cfg.Passwd = "tail", "secret"
			}
			cfg.TLS, cfg.AllowFallbackToPlaintext = c.tls, c.falls
			if c.want == "" {
				h.insert(1, 1)
				tl := h.tail("now")
				h.insert(2, 3)
				wantStrings(t, "payloads", payloads(h.flush(tl)), numbers(2, 3))
				return
			}
			r := h.reader()
			if _, err := r.Resolve(t.Context(), "now"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Resolve gave %v, want %q", err, c.want)
			}
			r.resume = position{flavor: c.server.Flavor(), file: "binlog.000001", offset: 4}
			s := &stream{r: r, ctx: t.Context(), flavor: c.server.Flavor(), plans: map[uint64]*plan{}}
			if err := s.run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the stream ended with %v, want %q", err, c.want)
			}
		})
	}
}

// makeCertificate returns a certificate for 127.0.0.1 and the flags that have a
// server use it.
func makeCertificate(t *testing.T) (*x509.Certificate, []string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return certificate, []string{"--ssl-cert=" + write("cert.pem", "CERTIFICATE", der), "--ssl-key=" + write("key.pem", "PRIVATE KEY", keyDER)}
}
