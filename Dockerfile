# Two images from one build: the relay (the last target, so the default) and the
# demo (--target demo).
#
#   docker build -t rowferry --build-arg VERSION=v0.1.0 --build-arg COMMIT=$(git rev-parse HEAD) .

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
# For networks with a module mirror of their own; empty means Go's default.
ARG GOPROXY
COPY . .
ARG VERSION
ARG COMMIT
ARG DATE
ARG V=github.com/rowferry/rowferry/internal/version
ARG TARGETOS
ARG TARGETARCH
# The caches stay with the builder, so a second build downloads nothing and compiles
# only what changed.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=${TARGETOS:-linux} GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -o /out/ \
      -ldflags "-s -w -X $V.version=$VERSION -X $V.commit=$COMMIT -X $V.date=$DATE" \
      ./cmd/rowferry ./demo

FROM gcr.io/distroless/static-debian12:nonroot AS demo
COPY --from=build /out/demo /demo
ENTRYPOINT ["/demo"]

FROM gcr.io/distroless/static-debian12:nonroot AS rowferry
COPY --from=build /out/rowferry /rowferry
ENV ROWFERRY_HTTP_ADDR=0.0.0.0:8390
EXPOSE 8390
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/rowferry", "healthcheck"]
ENTRYPOINT ["/rowferry"]
CMD ["run"]
