//! P11: a headless Chromium, driven by its DevTools protocol over a pipe.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::guardian;
use crate::support::wait::LIMIT;

/// The pipe of the protocol is on these descriptors, and the browser's words go nowhere.
const START: &str = "exec chromium \"$@\" 3<&0 4>&1 >/dev/null 2>&1";
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
];

/// One page of a browser with a profile of its own. Dropping it kills the browser.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    calls: u64,
    session: Option<String>,
    /// What the page and the browser complained about, such as violations of the policy.
    pub(crate) complaints: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// None, with a message, where no Chromium is installed.
    pub(crate) fn start() -> Option<Browser> {
        let is_installed = Command::new("chromium")
            .arg("--version")
            .stderr(Stdio::null())
            .output()
            .is_ok();
        if !is_installed {
            eprintln!("skipped: no chromium is installed");
            return None;
        }
        let profile = tempfile::tempdir().expect("a profile");
        let mut command = Command::new("sh");
        command.args(["-c", START, "chromium"]).args(FLAGS);
        command
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a browser");
        guardian::watch(child.id());
        let to = child.stdin.take().expect("a pipe");
        let out = child.stdout.take().expect("a pipe");
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(out).split(0).map_while(Result::ok) {
                let told =
                    sender.send(serde_json::from_slice(&message).expect("JSON of the browser"));
                if told.is_err() {
                    break;
                }
            }
        });
        let mut browser = Browser {
            child,
            to,
            from,
            calls: 0,
            session: None,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attached = browser.call(
            "Target.attachToTarget",
            &json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, &json!({}));
        }
        Some(browser)
    }

    /// The size of the window in pixels, and `light` or `dark`.
    pub(crate) fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &features);
    }

    pub(crate) fn allow_scripts(&mut self, allowed: bool) {
        self.call(
            "Emulation.setScriptExecutionDisabled",
            &json!({"value": !allowed}),
        );
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({"url": url}));
    }

    /// The value of a JavaScript expression; null while the page is loaded anew.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true});
        // It fails where the page goes away meanwhile.
        self.try_call("Runtime.evaluate", &asked)
            .map_or(Value::Null, |of| of["result"]["value"].clone())
    }

    pub(crate) fn picture(&mut self, path: &Path) {
        let png = self.call(
            "Page.captureScreenshot",
            &json!({"format": "png", "captureBeyondViewport": true}),
        );
        let png = STANDARD
            .decode(png["data"].as_str().expect("a picture"))
            .expect("base64");
        std::fs::write(path, png).expect("a file");
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.try_call(method, parameters)
            .unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_call(&mut self, method: &str, parameters: &Value) -> Result<Value, Value> {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        write!(self.to, "{message}\0").expect("the browser listens");
        loop {
            let mut answer = self
                .from
                .recv_timeout(LIMIT)
                .expect("an answer of the browser");
            if answer["id"] == self.calls {
                return if answer["error"].is_null() {
                    Ok(answer["result"].take())
                } else {
                    Err(answer)
                };
            }
            if answer["method"] == "Runtime.exceptionThrown" || answer["method"] == "Log.entryAdded"
            {
                self.complaints.push(answer["params"].to_string());
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
        guardian::release(self.child.id());
    }
}
