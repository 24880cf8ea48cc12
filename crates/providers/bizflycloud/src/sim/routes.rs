//! The paths of the simulated API.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use karpenter_cloud::clock::{Clock, later};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    CREDENTIAL_ID, CREDENTIAL_SECRET, EMAIL, Fault, Operation, PROJECT, data,
    world::{Request, World},
};

#[derive(Clone)]
struct Cloud {
    world: Arc<Mutex<World>>,
    clock: Clock,
}

/// An answer: its status and JSON.
type Answer = (u16, Value);

pub(super) fn router(world: Arc<Mutex<World>>, clock: Clock) -> Router {
    Router::new().fallback(handle).with_state(Cloud { world, clock })
}

async fn handle(State(cloud): State<Cloud>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let now = cloud.clock.now();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut world = cloud.world.lock();
    let path = uri.path().to_owned();
    let query = uri.query().unwrap_or_default().to_owned();
    let operation = operation(&method, &path);
    let fault = world.faulty_answer(operation);
    let (answer, retry_after, lost) = match fault {
        Some(Fault::Http {
            status,
            body,
            retry_after,
            ..
        }) => ((status, Value::String(body)), retry_after, false),
        Some(Fault::LoseAnswer(_)) => (world.answer(&method, &path, &query, &headers, &body, now), None, true),
        Some(_) | None => (world.answer(&method, &path, &query, &headers, &body, now), None, false),
    };
    world.record(Request {
        method: method.to_string(),
        path,
        body: if operation == Operation::Token {
            Value::Null
        } else {
            body
        },
        at: now,
        status: answer.0,
    });
    drop(world);
    if lost {
        let broken = futures::stream::once(async { Err::<Bytes, std::io::Error>(std::io::Error::other("cut off")) });
        return Body::from_stream(broken).into_response();
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

fn operation(method: &Method, path: &str) -> Operation {
    if path == "/api/token" {
        return Operation::Token;
    }
    if path == "/api/auth/service" {
        return Operation::Catalogue;
    }
    if *method == Method::POST && path.ends_with("/servers") {
        return Operation::CreateServers;
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
            return engine(rest, headers);
        }
        refusal(404, "no such path")
    }

    fn token(&mut self, body: &Value, now: Timestamp) -> Answer {
        let text = |key: &str| body[key].as_str().unwrap_or_default();
        let either = |one: &str, other: &str| if text(one).is_empty() { text(other) } else { text(one) };
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

    fn account(&self, path: &str) -> Answer {
        match path {
            "regions" => (200, data::regions()),
            "user" => (
                200,
                json!({"data": {
                    "email": EMAIL, "tenant_id": PROJECT, "billing_balance": self.balance,
                    "negative_balance": self.balance < 0, "has_expired_invoice": false,
                    "user_regions": [{"name": "Hà Nội", "code": "HN", "short_name": "HN"},
                                     {"name": "HCM", "code": "HCM", "short_name": "HCM"}],
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
                    data::new_flavors()
                } else {
                    data::legacy_flavors()
                };
                (200, json!(flavors))
            }
            ("GET", ["volume-types"]) => (200, data::volume_types()),
            ("GET", ["images"]) => (200, data::os_images()),
            ("GET", ["user", "images"]) => (200, json!({"images": []})),
            ("GET", ["vpc-networks"]) => (200, data::vpcs()),
            ("GET", ["firewalls"]) => (200, data::firewalls()),
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
            ("POST", ["servers", id, "action"]) => {
                let action = body["action"].as_str().unwrap_or_default();
                match self.act(id, action, now) {
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

fn engine(path: &str, headers: &HeaderMap) -> Answer {
    let token = headers.get("x-cluster-token").and_then(|value| value.to_str().ok());
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["k8s_versions"] => (200, data::kubernetes_versions()),
        ["_", id] if *id == super::BKE_CLUSTER => (
            200,
            json!({
                "uid": id, "name": "demo", "private_network_id": data::DEFAULT_VPC, "worker_pools": [],
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
