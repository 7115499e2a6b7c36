//! How the page looks: light and dark, on a phone, on paper; and that nothing leaves it or breaks
//! into it.

use super::{open, page, sample, text, texts};
use crate::harness::browser::Browser;
use serde_json::{json, Value};
use std::path::Path;

fn background(browser: &mut Browser) -> String {
    let color = browser.ask("getComputedStyle(document.body).backgroundColor");
    color.as_str().expect("a colour").to_owned()
}

const LIGHT: &str = "rgb(255, 255, 255)";
const DARK: &str = "rgb(17, 22, 27)";

/// The texts whose contrast with what lies below them is too low, by WCAG 2's formula.
const TOO_FAINT: &str = "(() => {
  const numbers = (c) => c.match(/[\\d.]+/g).map(Number);
  const part = (v) => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const below = (e) => {
    for (; e; e = e.parentElement) {
      const c = numbers(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim() !== '');
  const found = [];
  let looked = 0;
  for (const e of document.querySelectorAll('body *')) {
    if (!own(e) || !e.checkVisibility() || e.closest('script, option')) continue;
    looked += 1;
    const style = getComputedStyle(e);
    const ink = numbers(e.ownerSVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(below(e))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) found.push(`${e.tagName} ${e.textContent} ${contrast.toFixed(2)}`);
  }
  return { looked, found };
})()";

fn assert_readable(browser: &mut Browser, how: &str) {
    let result = browser.ask(TOO_FAINT);
    assert_eq!(result["found"], json!([]), "{how}");
    assert!(
        result["looked"].as_u64() > Some(300),
        "{how}: {}",
        result["looked"]
    );
}

#[test]
fn light_and_dark_follow_the_system_until_the_switch_is_used() {
    let name = "light_and_dark_follow_the_system_until_the_switch_is_used";
    let Some(mut open) = open(name, &sample::report()) else {
        return;
    };
    let browser = &mut open.browser;
    assert_eq!(background(browser), LIGHT);
    assert_readable(browser, "light");
    browser.click(".choose");
    assert_readable(browser, "light, a row chosen");
    browser.prefer("dark", "screen");
    assert_eq!(background(browser), DARK);
    assert_readable(browser, "dark");
    assert_eq!(text(browser, "#theme"), "Light");
    browser.click("#theme");
    assert_eq!(
        (
            background(browser).as_str(),
            text(browser, "#theme").as_str()
        ),
        (LIGHT, "Dark")
    );
    browser.prefer("light", "screen");
    browser.click("#theme");
    assert_eq!(background(browser), DARK);
    assert_readable(browser, "dark by the switch");
}

#[test]
fn on_paper_the_page_is_light_and_shows_every_table() {
    let report = sample::report();
    let Some(mut open) = open("on_paper_the_page_is_light_and_shows_every_table", &report) else {
        return;
    };
    let browser = &mut open.browser;
    browser.click("#theme");
    assert_eq!(background(browser), DARK);
    let paper = browser.call("Page.printToPDF", json!({}));
    assert!(paper["data"]
        .as_str()
        .is_some_and(|data| data.len() > 20_000));
    browser.prefer("dark", "print");
    assert_eq!(background(browser), LIGHT);
    let shown =
        "[...document.querySelectorAll('.groups')].filter((t) => t.checkVisibility()).length";
    assert_eq!(browser.ask(shown), sample::TABLES.len());
    assert_eq!(
        browser.ask("document.getElementById('theme').checkVisibility()"),
        false
    );
}

/// Names that want to be more than names.
fn hostile() -> Vec<String> {
    let long = "w".repeat(300);
    [
        "</script><img src=x onerror=\"document.title='broken'\">",
        "<!--<script>document.title='broken'</script>-->",
        "<svg onload=document.title='broken'>",
        "'\"><iframe src=http://example.org>",
        "javascript:document.title='broken'",
        "@REPORT@@SCRIPT@",
        "a\u{1b}[2Jb\u{0}c\nd\u{202e}gpj.exe\u{2066}",
        "__proto__",
        "constructor",
        "",
        long.as_str(),
    ]
    .map(str::to_owned)
    .to_vec()
}

/// A report with hostile names in every place for a text.
fn spoilt(value: &mut Value, names: &[String], next: &mut usize) {
    match value {
        Value::String(text) => {
            *text = names[*next % names.len()].clone();
            *next += 1;
        }
        Value::Array(items) => items.iter_mut().for_each(|v| spoilt(v, names, next)),
        Value::Object(fields) => fields.values_mut().for_each(|v| spoilt(v, names, next)),
        _ => {}
    }
}

#[test]
fn a_hostile_name_is_only_a_name_and_no_request_leaves_the_page() {
    let names = hostile();
    let mut report = sample::report();
    let name = "a_hostile_name_is_only_a_name_and_no_request_leaves_the_page";
    spoilt(&mut report, &names, &mut 0);
    report["recording"]["file"] = json!(names[0]);
    report["by_file"][0]["name"] = json!(names[6]);
    report["settings"][0]["source"] = json!("javascript:alert(1)");
    let Some(mut open) = open(name, &report) else {
        return;
    };
    let browser = &mut open.browser;
    for tab in sample::TABLES {
        browser.click(&format!("#tab-by_{tab}"));
        browser.click(&format!("#panel-by_{tab} .choose"));
    }
    assert_eq!(browser.complaints(), [] as [&Value; 0]);
    assert_eq!(
        texts(browser, "img, iframe, svg[onload], a[href^=javascript]").len(),
        0
    );
    assert_eq!(texts(browser, "script").len(), 2);
    let title = browser.ask("document.title");
    assert!(
        title
            .as_str()
            .is_some_and(|t| t.starts_with("</script><img")),
        "{title}"
    );
    let harmless = "a\\u{1b}[2Jb\\u{0}c\\u{a}d\\u{202e}gpj.exe\\u{2066}";
    assert_eq!(texts(browser, "#panel-by_file .choose")[0], harmless);
    let page = format!("file://{}", open.file.display());
    assert_eq!(open.browser.requests(), [page]);
}

#[test]
fn the_page_s_own_policy_lets_nothing_out() {
    let name = "the_page_s_own_policy_lets_nothing_out";
    let Some(mut open) = open(name, &json!({ "requests": 1 })) else {
        return;
    };
    let browser = &mut open.browser;
    let tried = browser.ask(
        "(async () => {
          const refused = [];
          document.addEventListener('securitypolicyviolation',
            (e) => refused.push(e.effectiveDirective));
          const image = document.createElement('img');
          image.src = 'http://127.0.0.1:9/x';
          const script = document.createElement('script');
          script.textContent = 'document.title = \"broken\"';
          document.body.append(image, script);
          await fetch('http://127.0.0.1:9/y').catch(() => 0);
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          return refused.sort();
        })()",
    );
    assert_eq!(tried, json!(["connect-src", "img-src", "script-src-elem"]));
    assert_ne!(browser.ask("document.title"), "broken");
}

#[test]
fn nothing_is_wider_than_a_phone() {
    let name = "nothing_is_wider_than_a_phone";
    let mut report = sample::report();
    spoilt(&mut report, &hostile(), &mut 0);
    let Some(mut open) = open(name, &sample::report()) else {
        return;
    };
    for (json, what) in [(sample::report(), "usual"), (report, "hostile")] {
        std::fs::write(&open.file, page(&json.to_string())).expect("the page");
        for width in [360, 320, 768, 1240] {
            open.browser.resize(width, 640);
            open.browser.open(&open.file);
            for tab in ["file", "process", "caller"] {
                open.browser.click(&format!("#tab-by_{tab}"));
                open.browser.click(&format!("#panel-by_{tab} .choose"));
                let wide = open.browser.ask("document.documentElement.scrollWidth");
                assert_eq!(wide, width, "{what}, {tab}");
            }
        }
    }
}

/// Makes the pictures in `docs/` again: `make pictures`.
#[test]
#[ignore = "writes into docs/"]
fn the_pictures_of_the_report_are_made_again() {
    let name = "the_pictures_of_the_report_are_made_again";
    let Some(mut open) = open(name, &sample::report()) else {
        return;
    };
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let browser = &mut open.browser;
    let top_of = |browser: &mut Browser, id: &str| {
        let top = browser.ask(&format!(
            "Math.round(document.getElementById('{id}').getBoundingClientRect().top + scrollY)"
        ));
        top.as_u64().expect("a place") as u32
    };
    std::fs::write(docs.join("report-light.png"), browser.picture(0, 1280, 900)).expect("docs");
    browser.prefer("dark", "screen");
    browser.click("#panel-by_file tr:nth-child(3) .choose");
    browser.ask("document.activeElement.blur()");
    browser.point(1.0, 1.0);
    browser.ask("scrollTo({ top: 0, behavior: 'instant' })");
    let top = top_of(browser, "where");
    let picture = browser.picture(top, 1280, 760);
    std::fs::write(docs.join("report-dark.png"), picture).expect("docs");
    for name in ["report-light.png", "report-dark.png"] {
        let size = std::fs::metadata(docs.join(name)).expect("a picture").len();
        assert!(size <= 200_000, "{name}: {size} bytes");
    }
}
