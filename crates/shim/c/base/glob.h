/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Glob matching; glob.c says which.
 */
#ifndef SYNCLATER_GLOB_H
#define SYNCLATER_GLOB_H

int sl_glob(const char *pattern, const char *text, int path_mode);

#endif
