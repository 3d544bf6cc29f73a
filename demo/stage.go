package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-sql-driver/mysql"
)

// relayBinary builds rowferry, or takes the binary that was given.
func relayBinary(ctx context.Context, given, scratch string) (string, error) {
	if given != "" {
		path, err := filepath.Abs(given)
		if err != nil {
			return "", fmt.Errorf("looking for rowferry: %w", err)
		}
		return path, nil
	}
	binary := filepath.Join(scratch, "rowferry")
	return binary, buildBinary(ctx, binary, "cmd/rowferry")
}

const modulePath = "github.com/rowferry/rowferry"

func buildBinary(ctx context.Context, path, pkg string) error {
	fmt.Println("building", pkg)
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, modulePath+"/"+pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// makeSchema creates a schema for this run alone. It returns its name, a DSN that
// names it, and how to drop it.
func makeSchema(ctx context.Context, serverDSN string) (name, dsn string, drop func() error, err error) {
	cfg, err := mysql.ParseDSN(serverDSN)
	if err != nil {
		return "", "", nil, fmt.Errorf("reading the DSN of MySQL: %w", err)
	}
	cfg.DBName = ""
	name = fmt.Sprintf("rowferry_demo_%d_%d", os.Getpid(), time.Now().Unix())
	if err := execute(ctx, cfg, "CREATE DATABASE "+name); err != nil {
		return "", "", nil, fmt.Errorf("creating a schema for the demo: %w", err)
	}
	drop = func() error {
		// Also after Ctrl-C, when ctx is over.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := execute(ctx, cfg, "DROP DATABASE "+name); err != nil {
			return fmt.Errorf("dropping the schema of the demo: %w", err)
		}
		return nil
	}
	named := cfg.Clone()
	named.DBName = name
	return name, named.FormatDSN(), drop, nil
}

func execute(ctx context.Context, cfg *mysql.Config, statement string) error {
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	_, err = db.ExecContext(ctx, statement)
	return errors.Join(err, db.Close())
}
