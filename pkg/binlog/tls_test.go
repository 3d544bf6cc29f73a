package binlog

import (
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
