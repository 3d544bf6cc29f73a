package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/config"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{}
	a.cert, a.key, a.pem, _ = issue(t, "test authority", nil)
	return a
}

// issue makes a certificate for name, signed by parent or by itself.
func issue(t *testing.T, name string, parent *authority) (*x509.Certificate, *ecdsa.PrivateKey, string, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: parent == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	signer, signerKey := template, key
	if parent != nil {
		signer, signerKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signerKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
}

// handshake connects with the client's settings to a server that shows a
// certificate for name, and returns what the client says and whether the server
// saw a client certificate.
func handshake(t *testing.T, client *tls.Config, signer *authority, name string) (error, bool) {
	t.Helper()
	_, _, certPEM, keyPEM := issue(t, name, signer)
	pair, err := tls.X509KeyPair([]byte(certPEM), []byte(keyPEM))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // a listener of this test
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Handshake() // the client's word is what counts
		_ = far.Close()
	}()
	err = tls.Client(near, client).Handshake()
	_ = near.Close()
	<-done
	return err, len(server.ConnectionState().PeerCertificates) > 0
}

func TestVerifyCA(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	for _, c := range []struct {
		mode   string
		signer *authority
		name   string
		ok     bool
	}{
		{"preferred", theirs, "other", true},
		{"verify-ca", ours, "other", true},
		{"verify-ca", theirs, "db", false},
		{"verify-identity", ours, "db", true},
		{"verify-identity", ours, "other", false},
		{"verify-identity", theirs, "db", false},
	} {
		environ := []string{"ROWFERRY_MYSQL_TLS=" + c.mode}
		if c.mode != "preferred" {
			environ = append(environ, "ROWFERRY_MYSQL_TLS_CA="+ours.pem)
		}
		conf := load(t, environ...)
		m, err := conf.MySQLConfig(conf.Source())
		if err != nil {
			t.Fatal(err)
		}
		if m.AllowFallbackToPlaintext != (c.mode == "preferred") {
			t.Errorf("%s: plaintext allowed is %t", c.mode, m.AllowFallbackToPlaintext)
		}
		if err, _ := handshake(t, m.TLS, c.signer, c.name); (err == nil) != c.ok {
			t.Errorf("%s, certificate for %s: %v", c.mode, c.name, err)
		}
	}
}

func TestTLSOffAndOwnWord(t *testing.T) {
	c := load(t, "ROWFERRY_MYSQL_TLS=off")
	if m, err := c.MySQLConfig(c.Source()); err != nil || m.TLS != nil {
		t.Errorf("off: %v, %v", m.TLS, err)
	}
	c = load(t, "ROWFERRY_STORE_DSN=a:b@tcp(db)/shop?tls=true")
	if m, err := c.MySQLConfig(c.Store()); err != nil || m.TLS == nil || m.TLS.InsecureSkipVerify || m.AllowFallbackToPlaintext {
		t.Errorf("the DSN's tls=true is not kept: %+v, %v", m, err)
	}
}

func TestClientCertificate(t *testing.T) {
	ours := newAuthority(t)
	_, _, certPEM, keyPEM := issue(t, "relay", ours)
	keyFile := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(keyFile, []byte(keyPEM), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ROWFERRY_MYSQL_TLS_KEY=" + keyPEM, "ROWFERRY_MYSQL_TLS_KEY=" + keyFile, "ROWFERRY_MYSQL_TLS_KEY_FILE=" + keyFile} {
		c := load(t, "ROWFERRY_MYSQL_TLS_CERT="+certPEM, key)
		m, err := c.MySQLConfig(c.Source())
		if err != nil {
			t.Fatal(err)
		}
		if err, shown := handshake(t, m.TLS, ours, "db"); err != nil || !shown {
			t.Errorf("client certificate shown: %t, %v", shown, err)
		}
	}
	_, _, _, otherKey := issue(t, "other", ours)
	wantMistake(t, []string{dsn, "ROWFERRY_MYSQL_TLS_CERT=" + certPEM, "ROWFERRY_MYSQL_TLS_KEY=" + otherKey}, "are not a pair")
	if _, err := config.Load([]string{dsn, "ROWFERRY_MYSQL_TLS_CERT=" + certPEM, "ROWFERRY_MYSQL_TLS_KEY=Q-not-a-key"}); err == nil {
		t.Error("a key that is none was accepted")
	}
}
