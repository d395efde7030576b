import type { Rule } from './expression.ts'

/** Returns a key that is equal exactly for equal rules, whatever the order of their objects' fields. */
export function ruleKey(rule: Rule): string {
  return JSON.stringify([rule.comment, rule.expressions.map(canonical)])
}

/** Returns fields sorted by name, without absent ones; verdicts and lists are the only objects within an expression. */
function canonical(value: object): readonly unknown[] {
  return Object.entries(value)
    .filter(([, field]) => field !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, field]) => [name, typeof field === 'object' && field !== null ? canonical(field) : field])
}
