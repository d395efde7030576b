// What the output of a stage says.

const FAILURE_LINES = 15
const FAILURES = [/^ *FAIL /, /^not ok /, /error TS\d+:/, /^\S+:\d+:\d+ .*━━/, /^Error: /]
const FAILED_TEST = /^ *× /
const FAILURES_BEGIN = /^⎯+ Failed (Suites|Tests) \d+ ⎯+$/
const PASSED_TEST = /^ *[✓↓] /
const ESCAPES = new RegExp(`${String.fromCharCode(27)}\\[[0-9;]*m`, 'g')

/** Tests that vitest counted, in all of its runs together. */
export function countsOf(text) {
  const counts = { passed: 0, failed: 0, skipped: 0 }
  for (const line of linesOf(text)) {
    const [, summary] = /^ *Tests {2,}(\d.*)/.exec(line) ?? []
    for (const [, count, word] of (summary ?? '').matchAll(/(\d+) (passed|failed|skipped)/g))
      counts[word] += Number(count)
  }
  return counts
}

/** Why a stage did nothing, or not everything; undefined when it did. */
export function skipReason(text) {
  return linesOf(text)
    .findLast(line => line.startsWith('skipped: '))
    ?.slice('skipped: '.length)
}

/** The first failure with what follows it, or the last lines where none is marked; and its test file, if there is one. */
export function firstFailure(text) {
  const lines = linesOf(text).filter(line => line.trim() !== '')
  const at = lines.findIndex(line => FAILURES.some(pattern => pattern.test(line)))
  const found = at < 0 ? lines.slice(-FAILURE_LINES) : lines.slice(at, at + FAILURE_LINES)
  return { lines: found, file: at < 0 ? undefined : /\btest\/\S+\.test\.ts\b/.exec(found[0])?.[0] }
}

/**
 * The output of a failed stage for a reader who may see only its beginning: what failed, why, then the rest, without
 * what passed.
 */
export function failureReport(text) {
  const lines = linesOf(text)
  const failed = lines.filter(line => FAILED_TEST.test(line))
  const rest = lines.filter(line => !PASSED_TEST.test(line) && !FAILED_TEST.test(line))
  const begin = Math.max(
    0,
    rest.findIndex(line => FAILURES_BEGIN.test(line)),
  )
  return [...failed, ...rest.slice(begin), ...rest.slice(0, begin)].join('\n')
}

function linesOf(text) {
  return text.replace(ESCAPES, '').split('\n')
}
