// Package compose_test holds docker-compose.yml, and the files it mounts, against
// what the program and the demo really take.
package compose_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/rowferry/rowferry/internal/config"
)

const root = "../.."

func load(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestServices(t *testing.T) {
	project := load(t)
	want := []string{"broker", "consumer", "migrate", "mysql", "namesrv", "rowferry", "shop"}
	if got := project.ServiceNames(); !slices.Equal(got, want) {
		t.Errorf("services %v, want %v", got, want)
	}
	if project.Name != "rowferry-demo" {
		t.Errorf("the project is called %q: without a name of its own it takes the folder's", project.Name)
	}
}

// An image without a version is another image tomorrow.
func TestImagesArePinned(t *testing.T) {
	for name, service := range load(t).Services {
		_, tag, tagged := strings.Cut(service.Image, ":")
		if !tagged || tag == "latest" {
			t.Errorf("service %s: image %q has no fixed version", name, service.Image)
		}
	}
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	froms := regexp.MustCompile(`(?m)^FROM (?:--\S+ )?(\S+)`).FindAllStringSubmatch(string(dockerfile), -1)
	if len(froms) != 3 {
		t.Fatalf("the Dockerfile has %d stages, want 3", len(froms))
	}
	for _, from := range froms {
		if !strings.Contains(from[1], ":") {
			t.Errorf("Dockerfile: base image %q has no fixed version", from[1])
		}
	}
}

// Every setting must be one that the program knows: a wrong name makes it refuse
// to start.
func TestSettingsAreKnown(t *testing.T) {
	for name, service := range load(t).Services {
		var environ []string
		for key, value := range service.Environment {
			if strings.HasPrefix(key, config.Prefix) && value != nil {
				environ = append(environ, key+"="+*value)
			}
		}
		if len(environ) == 0 {
			continue
		}
		if _, err := config.Load(environ); err != nil {
			t.Errorf("service %s: %v", name, err)
		}
	}
}

// Whoever depends on a service waits for a state that this service can reach.
func TestStartOrder(t *testing.T) {
	project := load(t)
	wants := map[string]map[string]string{
		"broker":   {"namesrv": types.ServiceConditionHealthy},
		"migrate":  {"mysql": types.ServiceConditionHealthy},
		"rowferry": {"mysql": types.ServiceConditionHealthy, "broker": types.ServiceConditionHealthy, "migrate": types.ServiceConditionCompletedSuccessfully},
		"shop":     {"mysql": types.ServiceConditionHealthy, "rowferry": types.ServiceConditionHealthy},
		"consumer": {"mysql": types.ServiceConditionHealthy, "rowferry": types.ServiceConditionHealthy},
	}
	for name, service := range project.Services {
		if len(service.DependsOn) != len(wants[name]) {
			t.Errorf("service %s waits for %d services, want %d", name, len(service.DependsOn), len(wants[name]))
		}
		for other, condition := range wants[name] {
			if got := service.DependsOn[other].Condition; got != condition {
				t.Errorf("service %s waits for %s to be %q, want %q", name, other, got, condition)
			}
			check := project.Services[other].HealthCheck
			if condition == types.ServiceConditionHealthy && (check == nil || check.Disable || len(check.Test) < 2) {
				t.Errorf("service %s waits for %s to be healthy, which has no health check", name, other)
			}
		}
	}
}

// The relay's image has no shell, so its health check must call the binary itself.
func TestHealthCheckNeedsNoShell(t *testing.T) {
	test := load(t).Services["rowferry"].HealthCheck.Test
	if want := []string{"CMD", "/rowferry", "healthcheck", "--ready"}; !slices.Equal(test, want) {
		t.Errorf("health check of rowferry %q, want %q", test, want)
	}
}

func TestMountedFilesExist(t *testing.T) {
	for name, service := range load(t).Services {
		for _, volume := range service.Volumes {
			if _, err := os.Stat(volume.Source); volume.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("service %s: %v", name, err)
			}
		}
	}
}

// What has no password must not be reachable from outside this machine.
func TestPortsAreLocal(t *testing.T) {
	for name, service := range load(t).Services {
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("service %s: port %s is published on %q, want 127.0.0.1", name, port.Published, port.HostIP)
			}
		}
	}
}
