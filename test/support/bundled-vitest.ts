/* What bundled-tests.ts gives for `vitest`: its own runner and assertions, which are JavaScript alone. */
import {
  ASYMMETRIC_MATCHERS_OBJECT,
  type ExpectStatic,
  JestAsymmetricMatchers,
  JestChaiExpect,
  JestExtend,
  setState,
} from '@vitest/expect'
import * as chai from 'chai'

export {
  afterAll,
  afterEach,
  beforeAll,
  beforeEach,
  describe,
  it,
  onTestFinished,
  test,
} from '@vitest/runner'

for (const plugin of [JestExtend, JestChaiExpect, JestAsymmetricMatchers]) chai.use(plugin)

const matchers: object = Reflect.get(globalThis, ASYMMETRIC_MATCHERS_OBJECT)
export const expect = Object.assign(
  (value: unknown, message?: string) => chai.expect(value, message),
  chai.expect,
  matchers,
) as ExpectStatic
setState({}, expect)

/** The compiler has judged types already. */
export const expectTypeOf = (): { readonly toEqualTypeOf: () => void } => ({ toEqualTypeOf: () => undefined })
