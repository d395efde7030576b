/*
 * What is taken from @kubernetes/client-node, by its own name: a bundler then leaves out the rest of the package, which
 * it cannot do where a whole package is imported late. Code that needs credentials imports this file late.
 */
export { KubeConfig } from '@kubernetes/client-node'
