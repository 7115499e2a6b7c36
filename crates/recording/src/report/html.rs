//! The report as one page: a file that opens offline, made of the report's JSON.
//!
//! Promise: the page asks nothing of any network (its own policy forbids it), and nothing in the
//! report can leave its place: what would end the block of data is written as an escape. Any text
//! makes a page; where it is no report, the page says so.
//!
//! What it does not do: it draws nothing itself. The parts in `html/` do that in the browser.
//!
//! Charts by hand, since each mark answers to the mouse and to keys, and the page is to stay small:
//! a library of pictures does neither.
//!
//! What it relies on: a `<` stands in JSON only within strings, where `\u003c` means the same.

use synclater_text::STYLE;

const PAGE: &str = include_str!("html/page.html");
const SCRIPT: &str = concat!(
    include_str!("html/number.js"),
    include_str!("html/dom.js"),
    include_str!("html/axis.js"),
    include_str!("html/heat.js"),
    include_str!("html/strips.js"),
    include_str!("html/distribution.js"),
    include_str!("html/tables.js"),
    include_str!("html/parts.js"),
    include_str!("html/app.js"),
);

/// Writes the page that shows a report, as `report --json` writes it.
#[must_use]
pub fn page(report_json: &str) -> String {
    let data = embedded(report_json);
    let parts = [
        ("@STYLE@", STYLE),
        ("@REPORT@", &data),
        ("@SCRIPT@", SCRIPT),
    ];
    let size = PAGE.len() + parts.iter().map(|(_, text)| text.len()).sum::<usize>();
    let mut page = String::with_capacity(size);
    let mut rest = PAGE;
    for (mark, text) in parts {
        // What was put in is not looked at again: a name may hold a mark.
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// JSON without the blanks between its tokens, and without a `<`.
fn embedded(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            ' ' | '\n' | '\r' | '\t' if !in_string => {}
            _ => text.push(c),
        }
        match (c, escaped) {
            ('"', false) => in_string = !in_string,
            ('\\', false) if in_string => {
                escaped = true;
                continue;
            }
            _ => {}
        }
        escaped = false;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// The data as a browser reads it: from its opening tag to the first thing that ends a script.
    fn data_of(page: &str) -> &str {
        let open = "<script type=\"application/json\" id=\"report\">";
        let (_, rest) = page.split_once(open).expect("the block of data");
        rest.split_once("</script").expect("its end").0
    }

    #[test]
    fn the_page_holds_the_report_and_all_of_its_parts() {
        let page = page("{\n  \"version\": 1,\n  \"name\": \"a \\\" b\"\n}\n");
        assert_eq!(data_of(&page), r#"{"version":1,"name":"a \" b"}"#);
        assert!(page.contains(STYLE) && page.contains(SCRIPT));
        assert!(!page.contains("@SCRIPT@") && page.ends_with("</html>\n"));
    }

    #[test]
    fn no_name_ends_the_block_of_data() {
        for name in [
            "</script><img src=x onerror=alert(1)>",
            "<!--<script>",
            "]]></SCRIPT >",
            "@SCRIPT@@STYLE@",
            "ends with a backslash \\",
        ] {
            let json = serde_json::json!({ "by_file": [{ "name": name }] }).to_string();
            let page = page(&json);
            let data = data_of(&page);
            assert!(!data.contains('<'), "{data}");
            let read: Value = serde_json::from_str(data).expect("JSON");
            assert_eq!(read["by_file"][0]["name"], name);
        }
    }

    #[test]
    fn nothing_in_the_page_asks_a_network() {
        let page = page("{}");
        assert!(page.contains("default-src 'none'"));
        for word in [
            "src=\"http",
            "@import",
            "url(",
            "fetch(",
            "XMLHttp",
            "innerHTML",
            "eval(",
        ] {
            assert!(!page.contains(word), "{word}");
        }
    }

    proptest! {
        #[test]
        fn the_data_means_what_the_report_says(names in proptest::collection::vec(".*", 0..6)) {
            let report = serde_json::json!({ "version": 1, "names": names });
            for json in [report.to_string(), synclater_text::json(&report)] {
                let page = page(&json);
                let read: Value = serde_json::from_str(data_of(&page)).expect("JSON");
                prop_assert_eq!(&read, &report);
            }
        }

        #[test]
        fn any_text_makes_a_page_that_it_cannot_leave(text in ".*") {
            let page = page(&text);
            prop_assert!(!data_of(&page).contains('<'));
            prop_assert!(page.ends_with("</html>\n"));
        }
    }
}
