//! ptrace(2) as the kernel has it.

use std::io;

pub(crate) fn request(
    what: libc::c_uint,
    tid: u32,
    address: usize,
    data: *mut libc::c_void,
) -> io::Result<i64> {
    // SAFETY: the requests used here read and write the structures of their callers alone.
    let r = unsafe { libc::ptrace(what, tid.cast_signed(), address, data) };
    if r == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(r)
}
