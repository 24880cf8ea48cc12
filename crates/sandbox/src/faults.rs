//! Faults that a test injects into the API server: failures, delays, cut connections, expired versions.

use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::bell::{Bell, Listener};
use crate::requests::Attributes;
use crate::server::Server;
use crate::status::ApiError;

/// What to do to requests that match.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer with this refusal, without doing anything.
    Fail(ApiError),
    /// Answer late; real time.
    Delay(Duration),
    /// Cut the connection, without doing anything.
    Disconnect,
}

/// A rule about requests; empty fields match everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    verb: String,
    resource: String,
    name: String,
    agent: String,
    /// `None`: for ever.
    times: Option<usize>,
    probability: f64,
    effect: Effect,
}

impl Fault {
    pub fn new(effect: Effect) -> Self {
        Self {
            verb: String::new(),
            resource: String::new(),
            name: String::new(),
            agent: String::new(),
            times: None,
            probability: 1.0,
            effect,
        }
    }

    /// Answers `code` with its usual reason: 409, 429, 500, 503 or 504.
    pub fn fail(code: u16) -> Self {
        let (reason, message) = match code {
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "forbidden by an injected fault"),
            404 => ("NotFound", "not found because of an injected fault"),
            409 => (
                "Conflict",
                "the object has been modified; please apply your changes to the latest version",
            ),
            410 => ("Expired", "the resourceVersion expired because of an injected fault"),
            429 => ("TooManyRequests", "too many requests because of an injected fault"),
            503 => (
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
            504 => ("Timeout", "the request timed out because of an injected fault"),
            _ => ("InternalError", "an injected fault"),
        };
        Self::new(Effect::Fail(ApiError::new(code, reason, message)))
    }

    /// Only requests with this verb (`create`, `patch`, `watch`, …), or `write` for all that change something.
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = verb.into();
        self
    }

    /// Only requests to this resource (plural), or `resource/subresource`.
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = resource.into();
        self
    }

    /// Only requests to the object of this name.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Only requests of this user agent.
    pub fn agent(mut self, agent: &str) -> Self {
        self.agent = agent.into();
        self
    }

    /// Only so many times.
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    /// Only with this probability, drawn from the sandbox's seed.
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability.clamp(0.0, 1.0);
        self
    }

    fn matches(&self, request: &Attributes) -> bool {
        let verb = self.verb.is_empty() || self.verb == request.verb || (self.verb == "write" && request.is_write());
        let resource = match self.resource.split_once('/') {
            Some((resource, subresource)) => resource == request.resource && subresource == request.subresource,
            None => self.resource.is_empty() || self.resource == request.resource,
        };
        verb && resource
            && (self.name.is_empty() || self.name == request.name)
            && (self.agent.is_empty() || self.agent == request.agent)
    }
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Pass,
    Delay(Duration),
    Fail(ApiError),
    Disconnect,
}

/// Something to run after a certain write.
type Hook = Box<dyn FnOnce() + Send>;

struct WriteHook {
    agent: String,
    left: usize,
    hook: Hook,
}

/// The faults in force.
pub struct Faults {
    rules: Mutex<Vec<Fault>>,
    hooks: Mutex<Vec<WriteHook>>,
    /// User agents that are cut off.
    cut_off: Mutex<Vec<String>>,
    cuts: Bell,
    random: Mutex<StdRng>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Faults")
            .field("rules", &*self.rules.lock())
            .finish_non_exhaustive()
    }
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rules: Mutex::default(),
            hooks: Mutex::default(),
            cut_off: Mutex::default(),
            cuts: Bell::default(),
            random: Mutex::new(StdRng::seed_from_u64(seed ^ 0xfa01)),
        }
    }

    /// Puts a rule into force; the first rule that matches a request decides.
    pub fn inject(&self, fault: Fault) {
        self.rules.lock().push(fault);
    }

    /// Takes every rule, hook and cut away.
    pub fn clear(&self) {
        self.rules.lock().clear();
        self.hooks.lock().clear();
        self.cut_off.lock().clear();
    }

    /// Ends every open watch; clients resume from their last version.
    pub fn drop_watches(&self) {
        self.cuts.ring();
    }

    /// Cuts a user agent off: its watches end and all its requests break, as if its process had died.
    pub fn cut_off(&self, agent: &str) {
        self.cut_off.lock().push(agent.to_owned());
        self.drop_watches();
    }

    /// Lets a user agent back in.
    pub fn reconnect(&self, agent: &str) {
        self.cut_off.lock().retain(|cut| cut != agent);
    }

    /// Runs `hook` after the `count`th successful write of a user agent from now on.
    ///
    /// A hook that calls [`Faults::cut_off`] makes this very write the last thing the agent did: the write is stored,
    /// but its answer never arrives.
    pub fn after_writes(&self, agent: &str, count: usize, hook: impl FnOnce() + Send + 'static) {
        let hook = WriteHook {
            agent: agent.to_owned(),
            left: count.max(1),
            hook: Box::new(hook),
        };
        self.hooks.lock().push(hook);
    }

    pub(crate) fn watch_cuts(&self) -> Listener {
        self.cuts.listen()
    }

    pub(crate) fn judge(&self, request: &Attributes, _server: &Server) -> Verdict {
        if self.is_cut_off(&request.agent) {
            return Verdict::Disconnect;
        }
        let mut rules = self.rules.lock();
        let Some(index) = rules.iter().position(|rule| rule.matches(request)) else {
            return Verdict::Pass;
        };
        let rule = &mut rules[index];
        if rule.probability < 1.0 && !self.random.lock().random_bool(rule.probability) {
            return Verdict::Pass;
        }
        let verdict = match &rule.effect {
            Effect::Fail(error) => Verdict::Fail(error.clone()),
            Effect::Delay(delay) => Verdict::Delay(*delay),
            Effect::Disconnect => Verdict::Disconnect,
        };
        if let Some(times) = &mut rule.times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                rules.remove(index);
            }
        }
        verdict
    }

    /// Runs the hooks of an answered request; says whether its answer still arrives.
    pub(crate) fn after(&self, request: &Attributes, code: u16) -> Verdict {
        if request.is_write() && code < 300 {
            let due: Vec<WriteHook> = {
                let mut hooks = self.hooks.lock();
                for hook in hooks.iter_mut().filter(|hook| hook.agent == request.agent) {
                    hook.left -= 1;
                }
                let (due, rest) = std::mem::take(&mut *hooks).into_iter().partition(|hook| hook.left == 0);
                *hooks = rest;
                due
            };
            for hook in due {
                (hook.hook)();
            }
        }
        if self.is_cut_off(&request.agent) {
            Verdict::Disconnect
        } else {
            Verdict::Pass
        }
    }

    fn is_cut_off(&self, agent: &str) -> bool {
        self.cut_off.lock().iter().any(|cut| cut == agent)
    }
}
