package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// Values of Config.MySQLTLS.
const (
	TLSOff            = "off"
	TLSPreferred      = "preferred"
	TLSVerifyCA       = "verify-ca"
	TLSVerifyIdentity = "verify-identity"
)

// PrivateKey is a private key as PEM text or the path of a PEM file; it is never
// printed.
type PrivateKey struct{ Secret }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *PrivateKey) UnmarshalText(text []byte) error {
	k.Secret = Secret(text)
	return nil
}

// MySQLConfig returns how to connect to d, for the SQL driver and, by its fields
// TLS and AllowFallbackToPlaintext, for the binlog client. The caller owns it.
func (c *Config) MySQLConfig(d DSN) (*mysql.Config, error) {
	m := d.parsed.Clone()
	if m.TLSConfig != "" { // the DSN says for itself
		return m, nil
	}
	t, err := c.tls(d)
	if err != nil {
		return nil, err
	}
	m.TLS = t
	m.AllowFallbackToPlaintext = c.MySQLTLS == TLSPreferred
	return m, nil
}

// tls builds what MYSQL_TLS asks for; nil for off.
func (c *Config) tls(d DSN) (*tls.Config, error) {
	if c.MySQLTLS == TLSOff {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := c.addCertificates(t); err != nil {
		return nil, err
	}
	switch c.MySQLTLS {
	case TLSPreferred:
		t.InsecureSkipVerify = true
	case TLSVerifyCA:
		// Go verifies chain and name together or neither, so neither is asked of
		// it, and the chain is verified here (TestVerifyCA).
		t.InsecureSkipVerify = true
		t.VerifyConnection = verifyChain(t.RootCAs)
	case TLSVerifyIdentity:
		t.ServerName = c.serverName(d)
	}
	return t, nil
}

func (c *Config) serverName(d DSN) string {
	if c.MySQLTLSServerName != "" {
		return c.MySQLTLSServerName
	}
	host, _, err := net.SplitHostPort(d.Addr())
	if err != nil {
		return "localhost" // a socket
	}
	return host
}

// verifyChain checks that the server's certificate was signed by one of roots
// (nil: the system's), whatever name it carries.
func verifyChain(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("the server sent no certificate")
		}
		intermediates := x509.NewCertPool()
		for _, cert := range s.PeerCertificates[1:] {
			intermediates.AddCert(cert)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
		return err
	}
}

// addCertificates loads the CA and the client certificate. Its errors name the
// variable and hold nothing of the key.
func (c *Config) addCertificates(t *tls.Config) error {
	if c.MySQLTLSCA != "" {
		pem, err := pemText(c.MySQLTLSCA)
		if err != nil {
			return fmt.Errorf("%sMYSQL_TLS_CA: %w", Prefix, err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%sMYSQL_TLS_CA holds no certificate in PEM form", Prefix)
		}
	}
	if c.MySQLTLSCert == "" || c.MySQLTLSKey.Secret == "" {
		return nil
	}
	cert, err := pemText(c.MySQLTLSCert)
	if err != nil {
		return fmt.Errorf("%sMYSQL_TLS_CERT: %w", Prefix, err)
	}
	key, err := pemText(c.MySQLTLSKey.Reveal())
	if err != nil {
		// The cause may quote the value, which is a key when its head is damaged.
		return fmt.Errorf("%sMYSQL_TLS_KEY is neither PEM text nor a file that can be read", Prefix)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%sMYSQL_TLS_CERT and %sMYSQL_TLS_KEY are not a pair: %w", Prefix, Prefix, err)
	}
	t.Certificates = []tls.Certificate{pair}
	return nil
}

// pemText returns s itself if it is PEM text, else what the file called s holds.
func pemText(s string) ([]byte, error) {
	if strings.Contains(s, "-----BEGIN ") {
		return []byte(s), nil
	}
	return os.ReadFile(s)
}
