//! Results as notebooks show them: values with MIME types, displays, errors, top-level `await`.

use crate::fixture::CodeFixture;
use crate::support::As;
use serde_json::{Value, json};

const RICH: &str = r#"
class Rich:
    def _repr_html_(self): return '<b>x</b>'
    def _repr_markdown_(self): return '**x**'
    def _repr_png_(self): return b'\x89PNG'
    def _repr_json_(self): return {'x': [1, None]}
    def _repr_latex_(self): return '$x$'
    def _repr_svg_(self): return '<svg/>'
    def __repr__(self): return 'Rich()'
display(Rich(), 'text')
Rich()
"#;

// promise 29
#[test]
fn values_have_their_representations() {
    let f = CodeFixture::new(As::User);
    let rich = f.python(RICH).ok();
    let results = rich.document["results"].as_array().unwrap().clone();
    let is_result: Vec<&Value> = results.iter().map(|result| &result["is_result"]).collect();
    assert_eq!(is_result, [&json!(false), &json!(false), &json!(true)]);
    let expected = json!({"text/plain": "Rich()", "text/html": "<b>x</b>", "text/markdown": "**x**", "image/png": "iVBORw==",
        "application/json": {"x": [1, null]}, "text/latex": "$x$", "image/svg+xml": "<svg/>"});
    assert_eq!(results[2]["data"], expected);
    assert_eq!(results[0]["data"], expected);
    // A statement, a `None` and a semicolon have no value.
    for code in ["x = 1", "None", "6 * 7;"] {
        assert_eq!(f.python(code).ok().document["results"], json!([]), "{code}");
    }
    assert_eq!(f.python("'a' * 3").ok().value(), "'aaa'");
    assert_eq!(f.call(&["-l", "javascript"], "({a: [1, 2]})").ok().value(), "{ a: [ 1, 2 ] }");
}

/// Tables and figures of the packages that notebooks are made of, which the test machine has from Debian.
// promise 29
#[test]
fn tables_figures_and_charts_are_shown_without_a_call() {
    let f = CodeFixture::with(As::User, &["--limit", "wall=5m"]);
    let table = f.python("import pandas\npandas.DataFrame({'a': [1, 2]})").ok();
    let data = &table.document["results"][0]["data"];
    assert!(data["text/html"].as_str().unwrap_or_default().contains("<table"), "{data:#}");
    assert!(data["text/plain"].as_str().unwrap_or_default().contains('a'));
    let figure = f
        .python("import matplotlib.pyplot as plt\nplt.bar(['x', 'y'], [1, 3], label='v')\nplt.title('T')\nplt.show()")
        .ok();
    let data = &figure.document["results"][0]["data"];
    assert!(data["image/png"].as_str().unwrap_or_default().starts_with("iVBORw0KGgo"), "{figure:#?}");
    let chart = &data["application/vnd.cofferdam.chart+json"];
    let chart = if chart.is_null() { &data["e2b/chart"] } else { chart };
    assert_eq!(
        (&chart["type"], &chart["title"]),
        (&json!("bar"), &json!("T")),
        "{:?}",
        data.as_object().unwrap().keys()
    );
    // Also of a figure that is never shown, and each once.
    let kept = f.python("fig = plt.plot([1, 2])\nNone").ok();
    assert_eq!(kept.document["results"].as_array().unwrap().len(), 1);
    assert_eq!(f.python("None").ok().document["results"], json!([]));
}

// promise 29
#[test]
fn errors_name_the_place_in_the_code_and_nothing_of_the_worker() {
    let f = CodeFixture::new(As::User);
    let failed = f.python("def g():\n    return {}['k']\n\ng()").failed("KeyError");
    let error = &failed.document["error"];
    let traceback = error["traceback"].as_str().unwrap();
    assert!(traceback.contains("line 2, in g") && traceback.contains("return {}['k']"), "{traceback}");
    assert!(!traceback.contains("cofferdam"), "{traceback}");
    assert_eq!(error["value"], "'k'");
    f.python("def").failed("SyntaxError");
    let thrown = f.call(&["-l", "javascript"], "function g() {\n  null.x\n}\ng()").failed("TypeError");
    let stack = thrown.document["error"]["traceback"].as_str().unwrap();
    assert!(stack.contains(":2:") && !stack.contains("cofferdam"), "{stack}");
    let status = f.call(&["-l", "bash"], "false").failed("ExitStatus");
    assert_eq!(status.document["error"]["value"], "1");
}

// promise 29
#[test]
fn promises_are_awaited_at_the_top_level() {
    let f = CodeFixture::new(As::User);
    assert_eq!(f.python("import asyncio\nawait asyncio.sleep(0.01, 'done')").ok().value(), "'done'");
    let code = "const slow = await new Promise(done => setTimeout(() => done('done'), 10)); slow";
    assert_eq!(f.call(&["-l", "javascript"], code).ok().value(), "'done'");
    assert_eq!(f.call(&["-l", "javascript"], "slow").ok().value(), "'done'", "what is declared stays declared");
}

// promise 29
#[test]
fn questions_to_a_person_are_refused_clearly() {
    let f = CodeFixture::new(As::User);
    let asked = f.python("input('name? ')");
    let error = asked.document["error"].to_string();
    assert!(asked.status == 1 && error.contains("input"), "{asked:#?}");
    let read = f.call(&["-l", "bash"], "read -r line").failed("ExitStatus");
    assert_eq!(read.document["error"]["value"], "1", "standard input is empty");
}
