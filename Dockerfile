# The controller as an image: one static binary on a base without a shell, as a user without rights.
#   docker build -t karpenter .
#   docker buildx build --platform linux/amd64,linux/arm64 -t karpenter .
FROM rust:1.95.0-alpine AS build
# C compiler and headers, for the crypto library and the allocator.
RUN apk add --no-cache build-base
WORKDIR /src
COPY . .
ARG COMMIT=""
# The toolchain of this image, whatever rust-toolchain.toml adds for developers.
ENV RUSTUP_TOOLCHAIN=1.95.0 KARPENTER_COMMIT=$COMMIT
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked -p karpenter && cp target/release/karpenter /karpenter

FROM gcr.io/distroless/static-debian12:nonroot
LABEL org.opencontainers.image.title="karpenter" \
      org.opencontainers.image.description="A Kubernetes node autoscaler" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /karpenter /karpenter
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/karpenter"]
CMD ["controller"]
