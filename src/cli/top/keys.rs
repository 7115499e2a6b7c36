//! What the keys of `top` do: all of it changes the screen, but for what is asked of the session.

use super::typing::Typing;
use super::view::Screen;
use crate::session::control::Request;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use synclater_recording::analysis::live::By;

/// A filter or a dial is not longer.
const INPUT_MAX: usize = 200;

const NO_DIAL: &str = "only a session has a dial: synclater run -- COMMAND, then top";

/// What is to be done about a key.
#[derive(Clone, Debug)]
pub enum Act {
    /// The screen has changed, or not.
    Draw,
    /// Freeze what is shown, or go on.
    Pause,
    /// Ask the session for something.
    Ask(Request),
    /// Stop this process, as a shell's key does.
    Suspend,
    /// End.
    Quit,
}

/// A key was pressed.
pub fn press(screen: &mut Screen, key: KeyEvent) -> Act {
    if key.kind == KeyEventKind::Release {
        return Act::Draw;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Act::Quit,
            KeyCode::Char('z') => Act::Suspend,
            _ => Act::Draw,
        };
    }
    screen.message = None;
    match screen.typing {
        Typing::Nothing => command(screen, key.code),
        Typing::Filter | Typing::Dial => typed(screen, key.code),
        Typing::Settle => {
            screen.typing = Typing::Nothing;
            match key.code {
                KeyCode::Char('y') => Act::Ask(Request::Settle),
                _ => Act::Draw,
            }
        }
    }
}

fn command(screen: &mut Screen, code: KeyCode) -> Act {
    let help = std::mem::take(&mut screen.help);
    match code {
        KeyCode::Char('q') => return Act::Quit,
        KeyCode::Char('?' | 'h') => screen.help = !help,
        KeyCode::Char(' ') => return Act::Pause,
        KeyCode::Char(n @ '1'..='5') => {
            let place = usize::from(n as u8 - b'1');
            group(screen, By::ALL[place]);
        }
        KeyCode::Tab => {
            let next = (screen.by.place() + 1) % By::ALL.len();
            group(screen, By::ALL[next]);
        }
        KeyCode::BackTab => {
            let next = (screen.by.place() + By::ALL.len() - 1) % By::ALL.len();
            group(screen, By::ALL[next]);
        }
        KeyCode::Char('s') | KeyCode::Right => screen.sort = screen.sort.moved(1),
        KeyCode::Left => screen.sort = screen.sort.moved(-1),
        KeyCode::Down => screen.skipped = screen.skipped.saturating_add(1),
        KeyCode::Up => screen.skipped = screen.skipped.saturating_sub(1),
        KeyCode::PageDown => screen.skipped = screen.skipped.saturating_add(10),
        KeyCode::PageUp => screen.skipped = screen.skipped.saturating_sub(10),
        KeyCode::Home => screen.skipped = 0,
        KeyCode::Char('/') => begin(screen, Typing::Filter, screen.filter.clone()),
        KeyCode::Char('u' | 'S') if screen.machine.is_some() => {
            screen.message = Some(NO_DIAL.into());
        }
        KeyCode::Char('u') => begin(screen, Typing::Dial, String::new()),
        KeyCode::Char('S') => screen.typing = Typing::Settle,
        KeyCode::Esc => screen.filter.clear(),
        _ => screen.help = help,
    }
    Act::Draw
}

fn group(screen: &mut Screen, by: By) {
    screen.by = by;
    screen.skipped = 0;
}

fn begin(screen: &mut Screen, typing: Typing, input: String) {
    screen.typing = typing;
    screen.input = input;
}

fn typed(screen: &mut Screen, code: KeyCode) -> Act {
    match code {
        KeyCode::Char(c) if screen.input.len() < INPUT_MAX => screen.input.push(c),
        KeyCode::Backspace => {
            screen.input.pop();
        }
        KeyCode::Esc => screen.typing = Typing::Nothing,
        KeyCode::Enter => {
            let typing = std::mem::replace(&mut screen.typing, Typing::Nothing);
            let input = std::mem::take(&mut screen.input);
            if typing == Typing::Filter {
                screen.filter = input;
                screen.skipped = 0;
            } else if !input.trim().is_empty() {
                return Act::Ask(Request::Set {
                    until: Some(input.trim().to_owned()),
                    for_s: None,
                });
            }
        }
        _ => {}
    }
    Act::Draw
}
