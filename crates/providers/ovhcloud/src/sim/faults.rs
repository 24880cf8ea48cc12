//! Ways in which the simulated API misbehaves.

use http::Method;

/// A fault of requests that match.
#[derive(Clone, Debug)]
pub struct HttpFault {
    pub method: Method,
    /// Part of the path.
    pub path: String,
    pub effect: Effect,
    /// How often; `None` until it is cleared.
    pub times: Option<u32>,
    /// How many matching requests are let through first.
    pub skip: u32,
}

/// A wire that is cut after some more requests: the one that meets the cut, and all after it, get no answer.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub after: usize,
    pub loses: Loses,
}

/// What is lost at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loses {
    /// The request never arrives.
    TheRequest,
    /// It does what it does, and the answer is lost.
    TheAnswer,
}

/// What happens instead of the answer.
#[derive(Clone, Debug)]
pub enum Effect {
    /// This status and body, and the request does nothing.
    Answer(u16, String),
    /// As above, with a header.
    AnswerWith(u16, String, (&'static str, String)),
    /// The request does what it does, and then the connection breaks.
    Reset,
    /// The request does what it does, and this is answered.
    AnswerAfter(u16, String),
}

impl HttpFault {
    pub fn new(method: Method, path: &str, effect: Effect) -> Self {
        Self {
            method,
            path: path.to_owned(),
            effect,
            times: None,
            skip: 0,
        }
    }

    /// Lets some matching requests through first.
    #[must_use]
    pub fn after(self, requests: u32) -> Self {
        Self { skip: requests, ..self }
    }

    #[must_use]
    pub fn once(self) -> Self {
        Self { times: Some(1), ..self }
    }

    /// A failure of the server, in the form that proxies give it.
    pub fn server_error(method: Method, path: &str) -> Self {
        let body = "<html><body><h1>502 Bad Gateway</h1></body></html>".to_owned();
        Self::new(method, path, Effect::Answer(502, body))
    }
}
