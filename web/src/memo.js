import { Component, h } from 'preact'

// memo skips a component whose properties are the same in the eyes of `same`.
export function memo(render, same) {
  return class Memo extends Component {
    shouldComponentUpdate(next) {
      return !same(this.props, next)
    }

    render() {
      return h(render, this.props)
    }
  }
}
