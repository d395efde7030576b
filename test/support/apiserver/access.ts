import { failure } from './status.ts'

export interface AccessRule {
  /** `*` for all, as in the next two. */
  readonly verbs: readonly string[]
  readonly groups: readonly string[]
  /** Plural names, `services/status` for a subresource. */
  readonly resources: readonly string[]
}

export interface User {
  readonly name: string
  /** Undefined may do everything. */
  readonly rules?: readonly AccessRule[]
}

export interface Attributes {
  readonly verb: string
  readonly group: string
  /** With the subresource. */
  readonly resource: string
  readonly namespace: string | undefined
}

const ANYBODY: User = { name: 'system:anonymous' }

/** Who may do what. Tests change it while the server runs. */
export class Access {
  /** By bearer token. When nobody is listed, everybody may do everything. */
  readonly tokens = new Map<string, User>()

  /** Throws ApiFailure 401. */
  userOf(authorization: string | undefined): User {
    if (this.tokens.size === 0) return ANYBODY
    const token = /^Bearer (.+)$/i.exec(authorization ?? '')?.[1]
    const user = this.tokens.get(token ?? '')
    if (user === undefined) throw failure({ code: 401, reason: 'Unauthorized', message: 'Unauthorized' })
    return user
  }

  /** Throws ApiFailure 403. */
  check({ name, rules }: User, { verb, group, resource, namespace }: Attributes): void {
    const has = (list: readonly string[], what: string) => list.includes('*') || list.includes(what)
    const allows = (rule: AccessRule) =>
      has(rule.verbs, verb) && has(rule.groups, group) && has(rule.resources, resource)
    if (rules === undefined || rules.some(allows)) return
    const place = namespace === undefined ? 'at the cluster scope' : `in the namespace "${namespace}"`
    throw failure({
      code: 403,
      reason: 'Forbidden',
      message: `${resource} is forbidden: User "${name}" cannot ${verb} resource "${resource}" in API group "${group}" ${place}`,
      details: { group, kind: resource },
    })
  }
}
