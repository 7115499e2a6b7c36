//! Prints the C header of a machine's system calls, as the build makes it: `header aarch64`.

use synclater_calls::{header, Machine};

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let machine = match name.as_str() {
        "x86_64" => Machine::X86_64,
        "i386" => Machine::I386,
        "aarch64" => Machine::Aarch64,
        "arm" => Machine::Arm,
        _ => {
            eprintln!("header: which machine? x86_64, i386, aarch64, arm");
            std::process::exit(2);
        }
    };
    print!("{}", header(machine, "NR_"));
}
