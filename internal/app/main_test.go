package app

import (
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestMain(m *testing.M) { testservers.Main(m) }
