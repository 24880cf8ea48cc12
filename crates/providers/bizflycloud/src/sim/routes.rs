//! The paths of the simulated API.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use karpenter_cloud::clock::{Clock, later};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    CREDENTIAL_ID, CREDENTIAL_SECRET, EMAIL, Fault, HangAt, Hangs, Operation, PROJECT, data,
    world::{Request, World},
};

#[derive(Clone)]
struct Cloud {
    world: Arc<Mutex<World>>,
    clock: Clock,
    hangs: Arc<Hangs>,
}

/// Where the billing API lists its plans, for anybody.
const BILLING: &str = "/api/v4/plans";

/// An answer: its status and JSON.
type Answer = (u16, Value);

pub(super) fn router(world: Arc<Mutex<World>>, clock: Clock, hangs: Arc<Hangs>) -> Router {
    Router::new().fallback(handle).with_state(Cloud { world, clock, hangs })
}

/// What becomes of an answer on its way.
enum Way {
    Arrives,
    /// Cut off.
    Lost,
    /// Not sent until the cloud is healed, and then cut off.
    Hangs,
}

async fn handle(State(cloud): State<Cloud>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let now = cloud.clock.now();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = uri.path().to_owned();
    if let Some(name) = path.strip_prefix("/__sim/") {
        return inspection(&cloud.world.lock(), name, now);
    }
    let (answer, retry_after, way) = answer(&cloud, &method, &uri, &headers, &body, now);
    match way {
        Way::Arrives => {}
        Way::Lost => return cut_off(),
        Way::Hangs => {
            let released = cloud.hangs.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            cloud.hangs.begun.notify_one();
            released.await;
            return cut_off();
        }
    }
    let status = StatusCode::from_u16(answer.0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = match &answer.1 {
        // Faults answer whatever they like: HTML, plain text, nothing.
        Value::String(text) if answer.0 >= 400 => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    };
    let mut response = (status, [("content-type", "application/json; charset=utf-8")], text).into_response();
    if let Some(seconds) = retry_after {
        response
            .headers_mut()
            .insert("retry-after", seconds.to_string().parse().expect("digits"));
    }
    response
}

/// An answer that breaks off.
fn cut_off() -> Response {
    let broken = futures::stream::once(async { Err::<Bytes, std::io::Error>(std::io::Error::other("cut off")) });
    Body::from_stream(broken).into_response()
}

/// What the cloud answers, recorded.
fn answer(
    cloud: &Cloud,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Value,
    now: Timestamp,
) -> (Answer, Option<u64>, Way) {
    let mut world = cloud.world.lock();
    let path = uri.path().to_owned();
    let query = uri.query().unwrap_or_default().to_owned();
    let operation = operation(method, &path);
    let fault = world.faulty_answer(operation);
    let mut carry_out = || world.answer(method, &path, &query, headers, body, now);
    let (answer, retry_after, way) = match fault {
        Some(Fault::Http {
            status,
            body,
            retry_after,
            ..
        }) => ((status, Value::String(body)), retry_after, Way::Arrives),
        Some(Fault::Locked) => (refusal(409, "server is locked"), None, Way::Arrives),
        Some(Fault::LoseAnswer(_)) => (carry_out(), None, Way::Lost),
        Some(Fault::Hang { when, .. }) => match when {
            HangAt::BeforeEffect => ((0, Value::Null), None, Way::Hangs),
            HangAt::AfterEffect => (carry_out(), None, Way::Hangs),
        },
        Some(_) | None => (carry_out(), None, Way::Arrives),
    };
    world.record(Request {
        method: method.to_string(),
        path,
        headers: shown(headers),
        body: if operation == Operation::Token {
            Value::Null
        } else {
            body.clone()
        },
        at: now,
        status: answer.0,
    });
    (answer, retry_after, way)
}

/// Headers as they may be shown.
fn shown(headers: &HeaderMap) -> BTreeMap<String, String> {
    let is_secret = |name: &str| name.contains("token") || name.contains("secret") || name == "authorization";
    let text = |name: &str, value: &HeaderValue| match is_secret(name) {
        true => "***".to_owned(),
        false => value.to_str().unwrap_or_default().to_owned(),
    };
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), text(name.as_str(), value)))
        .collect()
}

/// What a person who looks into the cloud is shown.
fn inspection(world: &World, name: &str, now: Timestamp) -> Response {
    let value = match name {
        "state" => json!({
            "servers": world.server_list(now), "volumes": world.volume_list(now), "networkInterfaces": world.nic_list(now),
        }),
        "requests" => world
            .requests()
            .iter()
            .map(|request| {
                json!({
                    "method": request.method, "path": request.path, "headers": request.headers, "at": request.at.to_string(),
                    "status": request.status, "body": request.body,
                })
            })
            .collect(),
        "cost" => json!(world.costs(now)),
        "leaks" => world.leaks(now).iter().map(|leak| json!(format!("{leak:?}"))).collect(),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    axum::Json(value).into_response()
}

fn operation(method: &Method, path: &str) -> Operation {
    if path == "/api/token" {
        return Operation::Token;
    }
    if path == "/api/auth/service" {
        return Operation::Catalogue;
    }
    if path == BILLING {
        return Operation::Billing;
    }
    if *method == Method::POST && path.ends_with("/servers") {
        return Operation::CreateServers;
    }
    if *method == Method::POST && path.contains("/network-interfaces/") {
        return Operation::NetworkInterfaceAction;
    }
    if *method == Method::POST && path.contains("/engine/cluster_leave/") {
        return Operation::LeaveCluster;
    }
    if *method == Method::POST && path.ends_with("/action") {
        return Operation::ServerAction;
    }
    if *method == Method::DELETE && path.contains("/volumes/") {
        return Operation::DeleteVolume;
    }
    if *method == Method::DELETE {
        return Operation::DeleteServer;
    }
    Operation::Read
}

fn refusal(status: u16, message: &str) -> Answer {
    (status, json!({ "message": message }))
}

impl World {
    fn answer(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        headers: &HeaderMap,
        body: &Value,
        now: Timestamp,
    ) -> Answer {
        match path {
            "/api/token" => return self.token(body, now),
            "/api/auth/service" => return (200, data::services(&self.base, &self.hidden_services)),
            BILLING => return (200, data::billing_plans()),
            _ => {}
        }
        if let Some(answer) = self.refuse_stranger(headers, now) {
            return answer;
        }
        if let Some(rest) = path.strip_prefix("/iaas-cloud/api/") {
            return self.cloud_server(method, rest, query, body, now);
        }
        if let Some(rest) = path.strip_prefix("/api/account/") {
            return self.account(rest);
        }
        if let Some(rest) = path.strip_prefix("/api/kubernetes-engine/") {
            return engine(rest, headers, self.image_edition, &self.scaled_pools);
        }
        refusal(404, "no such path")
    }

    fn token(&mut self, body: &Value, now: Timestamp) -> Answer {
        let text = |key: &str| body[key].as_str().unwrap_or_default();
        let strict = self.strict_credentials();
        let either = |one: &str, other: &str| match strict {
            Some(prefix) if other.starts_with(prefix) => text(other),
            Some(_) => text(one),
            None if text(one).is_empty() => text(other),
            None => text(one),
        };
        let is_known = match text("auth_method") {
            "password" => text("username") == EMAIL && text("password") == self.password,
            "application_credential" => {
                either("application_credential_id", "credential_id") == CREDENTIAL_ID
                    && either("application_credential_secret", "credential_secret") == CREDENTIAL_SECRET
            }
            _ => false,
        };
        if !is_known {
            return refusal(401, "Sai thông tin đăng nhập");
        }
        let token = self.id("token-value");
        let expires = later(now, self.options.token_lifetime);
        self.tokens.insert(token.clone(), expires);
        let mut answer = json!({"token": token, "project_id": PROJECT, "project_name": "main"});
        if let Some(key) = self.expiry_key {
            answer[key] = json!(expires.to_string());
        }
        (200, answer)
    }

    fn refuse_stranger(&self, headers: &HeaderMap, now: Timestamp) -> Option<Answer> {
        let header = |name: &str| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let is_known = match header("x-auth-type") {
            "application_credential" => {
                header("x-app-credential-id") == CREDENTIAL_ID && header("x-app-credential-secret") == CREDENTIAL_SECRET
            }
            _ => self.tokens.get(header("x-auth-token")).is_some_and(|end| now < *end),
        };
        if !is_known {
            return Some(refusal(401, "Token is invalid or expired"));
        }
        let project = header("x-project-id");
        (!project.is_empty() && project != PROJECT).then(|| refusal(403, "Wrong project"))
    }

    fn account(&mut self, path: &str) -> Answer {
        let is_closed = self.strike(|fault| *fault == Fault::RegionDisabled).is_some();
        let hanoi = json!({"name": "Hà Nội", "code": "HN", "short_name": "HN"});
        let mut regions = vec![json!({"name": "HCM", "code": "HCM", "short_name": "HCM"})];
        regions.extend((!is_closed).then_some(hanoi));
        match path {
            "regions" => (200, data::regions()),
            "user" => (
                200,
                json!({"data": {
                    "email": EMAIL, "tenant_id": PROJECT, "billing_balance": self.balance,
                    "negative_balance": self.balance < 0, "has_expired_invoice": false,
                    "user_regions": regions,
                }}),
            ),
            _ => refusal(404, "no such path"),
        }
    }

    fn cloud_server(&mut self, method: &Method, path: &str, query: &str, body: &Value, now: Timestamp) -> Answer {
        let parts: Vec<&str> = path.split('/').collect();
        let not_found = || refusal(404, "Không tìm thấy");
        match (method.as_str(), parts.as_slice()) {
            ("GET", ["flavors"]) => {
                let flavors = if query.contains("new=true") {
                    self.new_flavors()
                } else {
                    data::legacy_flavors()
                };
                (200, json!(flavors))
            }
            ("GET", ["volume-types"]) => (200, data::volume_types()),
            ("GET", ["images"]) => (200, data::os_images()),
            ("GET", ["user", "images"]) => (200, data::custom_images()),
            ("GET", ["vpc-networks"]) => (200, data::vpcs()),
            ("GET", ["firewalls"]) => (200, data::firewalls(&self.more_firewalls)),
            ("GET", ["keypairs"]) => (200, data::keypairs()),
            ("GET", ["servers"]) => (200, json!(self.server_list(now))),
            ("POST", ["servers"]) => {
                let Some(orders) = body.as_array() else {
                    return refusal(400, "an array is expected");
                };
                match self.order(orders, now) {
                    Ok(tasks) => (200, json!({ "task_id": tasks })),
                    Err((status, message)) => refusal(status, &message),
                }
            }
            ("GET", ["servers", id]) => self.server(id, now).map_or_else(not_found, |server| (200, server)),
            ("DELETE", ["servers", id]) => {
                let disks: Vec<String> = serde_json::from_value(body["delete_volume"].clone()).unwrap_or_default();
                match self.delete(id, &disks, now) {
                    Some(()) => (200, json!({"task_id": "deletion"})),
                    None => not_found(),
                }
            }
            ("POST", ["servers", id, "action"]) => match self.act(id, body, now) {
                Ok(()) => (200, json!({"message": "ok"})),
                Err((status, message)) => refusal(status, &message),
            },
            ("GET", ["network-interfaces"]) => (200, json!(self.nic_list(now))),
            ("POST", ["network-interfaces", id, "action"]) => {
                let groups: Vec<String> = serde_json::from_value(body["security_groups"].clone()).unwrap_or_default();
                match self.add_firewalls(id, &groups) {
                    Some(()) => (200, json!({"message": "ok"})),
                    None => not_found(),
                }
            }
            ("GET", ["tasks", id]) => {
                if self.strike(|fault| *fault == Fault::TasksForgotten).is_some() {
                    return not_found();
                }
                self.task(id, now).map_or_else(not_found, |task| (200, task))
            }
            ("GET", ["volumes"]) => (200, json!(self.volume_list(now))),
            ("GET", ["volumes", id]) => {
                let found = self.volume_list(now).into_iter().find(|volume| volume["id"] == *id);
                found.map_or_else(not_found, |volume| (200, volume))
            }
            ("DELETE", ["volumes", id]) => match self.delete_volume(id, now) {
                Ok(()) => (200, json!({"message": "ok"})),
                Err((status, message)) => refusal(status, &message),
            },
            _ => not_found(),
        }
    }
}

fn engine(path: &str, headers: &HeaderMap, edition: &str, scaled_pools: &[String]) -> Answer {
    let token = headers.get("x-cluster-token").and_then(|value| value.to_str().ok());
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["k8s_versions"] => (200, data::kubernetes_versions(edition)),
        ["_", id] if *id == super::BKE_CLUSTER => (
            200,
            json!({
                "uid": id, "name": "demo", "private_network_id": data::DEFAULT_VPC,
                "worker_pools": scaled_pools
                    .iter()
                    .map(|name| json!({"name": name, "enable_autoscaling": true}))
                    .collect::<Vec<_>>(),
                "package": {"max_nodes": 50}, "stats": {"total_cpu": null},
            }),
        ),
        ["engine", "cluster_leave", id] if *id == super::BKE_CLUSTER => {
            if token == Some(super::BKE_TOKEN) {
                (200, json!({"message": "left"}))
            } else {
                refusal(403, "wrong token")
            }
        }
        _ => refusal(404, "no such path"),
    }
}
