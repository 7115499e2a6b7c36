//! Every system call of synclater, and all its unsafe code, behind small safe types.
//! Knows nothing of policy. The module list below is the audit list.
