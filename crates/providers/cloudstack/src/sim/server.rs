//! The socket: decodes requests, checks who sends them, and answers, late or not at all if a fault says so.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use karpenter_cloud::clock::{Clock, later};
use secrecy::SecretString;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    World,
    answer::{self, Key, Refusal},
    commands,
    faults::{self, FaultKind},
    params::{Method, Params},
    state::{Call, Role, State, Window, new_id},
};
use crate::client::signing;

/// A form larger than this is answered by the servlet container.
const LONGEST_FORM: usize = 1_048_576;
const LONGEST_QUERY: usize = 8192;
/// How the servlet container labels its own pages.
const CONTAINER: &str = "text/html;charset=iso-8859-1";

pub(super) async fn serve(listener: TcpListener, world: Arc<World>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let world = world.clone();
        connections.spawn(async move {
            let service = service_fn(|request| respond(world.clone(), request));
            // Ends when the client goes or a fault resets the connection; neither is an error here.
            let _ = http1::Builder::new()
                .auto_date_header(false)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// The connection is closed without an answer.
#[derive(Debug)]
struct Reset;

impl std::fmt::Display for Reset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("connection reset")
    }
}

impl std::error::Error for Reset {}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn respond(world: Arc<World>, request: Request<Incoming>) -> Result<Response<Body>, Reset> {
    let method = match request.method() == http::Method::POST {
        true => Method::Post,
        false => Method::Get,
    };
    let query = request.uri().query().map(str::to_owned);
    if query.as_ref().is_some_and(|query| query.len() > LONGEST_QUERY) {
        return Ok(page(
            414,
            CONTAINER,
            "<h1>Bad Message 414</h1><pre>reason: URI Too Long</pre>",
        ));
    }
    let Ok(body) = request.into_body().collect().await else {
        return Err(Reset);
    };
    let body = body.to_bytes();
    if body.len() > LONGEST_FORM {
        let text = "<html><head><title>Error 404 Not Found</title></head></html>";
        return Ok(page(404, CONTAINER, text));
    }
    let params = Params::decode(method, &body, query.as_deref());
    let command = params.get("command").unwrap_or_default().to_owned();
    let fault = {
        let mut state = world.state.lock();
        let mut faults = state.faults.iter_mut();
        faults.find_map(|fault| fault.hits(&command).then(|| fault.kind.clone()))
    };
    match &fault {
        Some(FaultKind::ResetBefore) => return Err(Reset),
        Some(FaultKind::HangBefore) => {
            world.hung.notify_one();
            never().await;
        }
        Some(FaultKind::Page(status)) => return Ok(page(*status, "text/html", "<html><body>proxy</body></html>")),
        Some(FaultKind::Slow(time)) => world.clock.sleep(*time).await,
        _ => {}
    }
    let latency = world.state.lock().settings.latency.answer;
    if !latency.is_zero() {
        world.clock.sleep(latency).await;
    }
    let (status, answered) = {
        let now = world.clock.now();
        let mut state = world.state.lock();
        state.run_due(now);
        let result = match &fault {
            Some(FaultKind::Refuse(code, text)) => Err(Refusal::new(*code, 9999, text.clone())),
            _ => state.dispatch(&params, &command, now),
        };
        let (status, answered) = match result {
            Ok(mut content) => {
                if let Some(kind) = &fault {
                    state.spoil_job(content["jobid"].as_str(), kind);
                    faults::spoil(kind, &mut content);
                }
                (200, json!({format!("{}response", command.to_lowercase()): content}))
            }
            Err(refusal) => (refusal.code, refusal.body(&command)),
        };
        state.note(&params, &command, status, now);
        (status, answered)
    };
    world.changed.notify_waiters();
    match &fault {
        Some(FaultKind::LoseAnswer) => return Err(Reset),
        Some(FaultKind::HangAfter) => {
            world.hung.notify_one();
            never().await;
        }
        _ => {}
    }
    let is_json = params
        .get("response")
        .is_some_and(|wanted| wanted.eq_ignore_ascii_case("json"));
    let mut text = match is_json {
        true => answered.to_string(),
        false => answer::xml(&answered, &world.state.lock().settings.version),
    };
    if fault == Some(FaultKind::ControlCharacter) {
        text = faults::with_control_character(&text);
    }
    let mut response = Response::new(match fault {
        Some(FaultKind::SlowBody(time)) => slow(text.into(), world.clock.clone(), time),
        _ => whole(text.into()),
    });
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(match is_json {
            true => "application/json;charset=utf-8",
            false => "text/xml;charset=utf-8",
        }),
    );
    if status != 200
        && status != 401
        && let Some(text) = answered.as_object().and_then(|outer| outer.values().next())
        && let Ok(text) = HeaderValue::from_str(text["errortext"].as_str().unwrap_or_default())
    {
        headers.insert("x-description", text);
    }
    let settings = world.state.lock().settings.clone();
    if settings.date_header {
        let now = world.clock.now() + settings.clock_ahead;
        let text = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        if let Ok(text) = HeaderValue::from_str(&text) {
            headers.insert(header::DATE, text);
        }
    }
    Ok(response)
}

fn whole(text: Bytes) -> Body {
    Full::new(text).boxed_unsync()
}

/// Half of the text at once, the rest later.
fn slow(text: Bytes, clock: Clock, time: Duration) -> Body {
    let mut first = text;
    let rest = first.split_off(first.len() / 2);
    let rest = async move {
        clock.sleep(time).await;
        rest
    };
    let parts = stream::once(std::future::ready(first)).chain(stream::once(rest));
    BodyExt::boxed_unsync(StreamBody::new(parts.map(|part| Ok(Frame::data(part)))))
}

fn page(status: u16, kind: &'static str, text: &'static str) -> Response<Body> {
    let mut response = Response::new(whole(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn never() -> Infallible {
    std::future::pending().await
}

impl State {
    fn dispatch(&mut self, params: &Params, command: &str, now: Timestamp) -> Result<serde_json::Value, Refusal> {
        if command.is_empty() {
            return Err(Refusal::unauthorised(Key::Null));
        }
        let needs = commands::least_role(command);
        let Some(needs) = needs else {
            return Err(Refusal::unauthorised(Key::ErrorResponse));
        };
        if command.starts_with("quotaTariff") && self.settings.tariffs.is_none() {
            return Err(Refusal::unauthorised(Key::ErrorResponse));
        }
        let server_time = now + self.settings.clock_ahead;
        let is_read = ["get", "list", "query", "find"]
            .iter()
            .any(|verb| command.starts_with(verb));
        if self.settings.enforce_post_and_timestamps && !is_read && params.method == Method::Get {
            let text = format!("State changing command {command} needs to be sent using POST request");
            return Err(Refusal::new(400, 9999, text));
        }
        self.check_expiry(params, server_time)?;
        let key = params.get("apikey").unwrap_or_default();
        let known = self.accounts.iter().find(|own| own.api_key == key && own.is_enabled);
        let Some(account) = known.cloned() else {
            return Err(Refusal::unauthorised(Key::Command));
        };
        if account.role < needs {
            return Err(Refusal::no_such_api(command, &account.name));
        }
        self.throttle(&account.name, account.role, now)?;
        let signed = signing::canonical(params.raw.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let expected = signing::sign(&signed, &SecretString::from(account.secret_key.clone()));
        if params.get("signature") != Some(expected.as_str()) {
            return Err(Refusal::unauthorised(Key::Command));
        }
        params.check(command)?;
        commands::run(self, command, &account, params, now)
    }

    /// With version 3 the expiry counts; the enforcing server wants version 3 and at most a quarter of an hour.
    fn check_expiry(&self, params: &Params, now: Timestamp) -> Result<(), Refusal> {
        let refused = Err(Refusal::unauthorised(Key::Command));
        let enforces = self.settings.enforce_post_and_timestamps;
        if params.get("signatureversion") != Some("3") {
            return if enforces { refused } else { Ok(()) };
        }
        let expires = params.get("expires").and_then(expiry);
        let Some(expires) = expires else { return refused };
        if expires < now || (enforces && expires > later(now, Duration::from_secs(15 * 60))) {
            return refused;
        }
        Ok(())
    }

    fn throttle(&mut self, account: &str, role: Role, now: Timestamp) -> Result<(), Refusal> {
        let Some((interval, most)) = self.settings.throttling else {
            return Ok(());
        };
        if role == Role::RootAdmin {
            return Ok(());
        }
        let window = self
            .windows
            .entry(account.to_owned())
            .or_insert(Window { since: now, used: 0 });
        if later(window.since, interval) <= now {
            *window = Window { since: now, used: 0 };
        }
        window.used += 2;
        if window.used > most {
            *self.above_limit.entry(account.to_owned()).or_default() += 1;
            let left = later(window.since, interval).duration_since(now).as_millis();
            return Err(Refusal::new(
                429,
                9999,
                format!("The given user has reached his/her account api limit, please retry after [{left}] ms."),
            ));
        }
        Ok(())
    }

    fn spoil_job(&mut self, job: Option<&str>, kind: &FaultKind) {
        let Some(job) = self.jobs.iter_mut().find(|own| Some(own.id.as_str()) == job) else {
            return;
        };
        match kind {
            FaultKind::FailJob(code, text) => job.fails = Some((*code, text.clone())),
            FaultKind::StickJob => job.is_stuck = true,
            // What asks for it by the id that it was told finds nothing.
            FaultKind::ForgetJob => job.id = new_id(),
            FaultKind::CancelJob => job.is_cancelled = true,
            _ => {}
        }
    }

    fn note(&mut self, params: &Params, command: &str, status: u16, at: Timestamp) {
        let account = self
            .accounts
            .iter()
            .find(|own| Some(own.api_key.as_str()) == params.get("apikey"));
        let account = account.map(|own| own.name.clone()).unwrap_or_default();
        self.calls.push(Call {
            at,
            command: command.to_owned(),
            account,
            status,
            params: params.raw.iter().cloned().collect(),
        });
    }
}

fn expiry(text: &str) -> Option<Timestamp> {
    let zoned = jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%z", text).ok();
    zoned
        .and_then(|time| time.to_timestamp().ok())
        .or_else(|| text.parse().ok())
}
