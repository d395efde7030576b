import type { Rule } from './expression.ts'

/** A string that two rules share exactly when they say the same, whatever order their objects' fields were made in. */
export function ruleKey(rule: Rule): string {
  return JSON.stringify([rule.comment, rule.expressions.map(canonical)])
}

/** Fields by name, absent ones left out; verdicts and lists are the only objects within an expression. */
function canonical(value: object): readonly unknown[] {
  return Object.entries(value)
    .filter(([, field]) => field !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, field]) => [name, typeof field === 'object' && field !== null ? canonical(field) : field])
}
