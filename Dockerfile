# The controller as an image: one binary on a base without a shell, as a user without rights.
#   docker build -t karpenter .
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p karpenter

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/release/karpenter /karpenter
USER 65532:65532
ENTRYPOINT ["/karpenter"]
CMD ["controller"]
